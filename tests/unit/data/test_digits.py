import numpy as np
import pytest
from sklearn.datasets import load_digits

from mpcvit.artifacts.config import DataConfig, DataSource
from mpcvit.errors import UserError

DIGITS = DataConfig(source=DataSource.DIGITS)


def test_every_digit_is_in_one_split(load):
    dataset = load(config=DIGITS, image_size=8, channels=1, classes=10)
    pixels = np.concatenate([dataset.train.images, dataset.test.images])
    expected = np.round(load_digits().images * 255 / 16).astype(np.uint8)
    assert sorted(image.tobytes() for image in pixels) == sorted(
        image.tobytes() for image in expected
    )
    assert dataset.classes == tuple("0123456789")


def test_a_fifth_of_each_class_is_tested(load):
    dataset = load(config=DIGITS, image_size=8, channels=1, classes=10)
    train, test = np.bincount(dataset.train.labels), np.bincount(dataset.test.labels)
    np.testing.assert_array_equal(test, np.round((train + test) / 5))


def test_labels_follow_their_images(load):
    dataset = load(config=DIGITS, image_size=8, channels=1, classes=10)
    digits = load_digits()
    label_of = {
        np.round(image * 255 / 16).astype(np.uint8).tobytes(): label
        for image, label in zip(digits.images, digits.target, strict=True)
    }
    for split in (dataset.train, dataset.test):
        assert [label_of[image.tobytes()] for image in split.images] == split.labels.tolist()


def test_the_split_never_moves(load):
    # recorded once; whoever changes the rule makes old and new accuracies incomparable
    dataset = load(config=DIGITS, image_size=8, channels=1, classes=10)
    assert (len(dataset.train), len(dataset.test)) == (1438, 359)
    assert dataset.test.fingerprint.startswith("4bf7859d5b992866")


def test_digits_grow_and_turn_rgb(load):
    dataset = load(config=DIGITS, image_size=13, channels=3, classes=10)
    assert dataset.train.images.shape[1:] == (13, 13, 3)
    np.testing.assert_array_equal(dataset.train.images[..., 0], dataset.train.images[..., 2])


def test_other_class_counts_are_refused(load):
    with pytest.raises(UserError, match=r"has 10 classes, but the model has 7 \(model.classes\)"):
        load(config=DIGITS, image_size=8, channels=1, classes=7)
