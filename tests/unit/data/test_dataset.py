import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpcvit.artifacts.config import DataConfig, DataSource
from mpcvit.artifacts.image_fit import FitRule, ImageFit, Resample
from mpcvit.data import fit_image, load_split
from mpcvit.data.sources import find_source
from mpcvit.data.sources import folder as folder_source
from mpcvit.errors import UserError

DIGITS = DataConfig(source=DataSource.DIGITS)


@pytest.fixture
def pictures(tmp_path: Path, random_pixels) -> Path:
    """A folder of 11 x 11 pictures, two per class and split."""
    folders = [f"{split}/{name}" for split in ("train", "test") for name in ("cat", "dog")]
    for seed, folder in enumerate(folders):
        (tmp_path / "pictures" / folder).mkdir(parents=True)
        for number in range(2):
            pixels = random_pixels(2 * seed + number, height=11, width=11)
            Image.fromarray(pixels).save(tmp_path / "pictures" / folder / f"{number}.png")
    return tmp_path / "pictures"


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_arrays_are_mapped_and_read_only(pictures, load):
    split = load(pictures).train
    assert isinstance(split.images, np.memmap)
    assert (split.images.dtype, split.labels.dtype) == (np.uint8, np.int32)
    with pytest.raises(ValueError, match="read-only"):
        split.images[0] = 0


def test_images_are_resized(pictures, load):
    dataset = load(pictures, image_size=5)
    expected = fit_image(read(pictures / "train" / "cat" / "0.png"), 5)
    np.testing.assert_array_equal(dataset.train.images[0], expected)


def test_only_test_images_are_cropped(pictures, load):
    dataset = load(pictures, DataConfig(eval_crop=7 / 11), image_size=7)
    test = read(pictures / "test" / "cat" / "0.png")
    np.testing.assert_array_equal(dataset.test.images[0], test[2:9, 2:9])
    train = read(pictures / "train" / "cat" / "0.png")
    np.testing.assert_array_equal(dataset.train.images[0], fit_image(train, 7))


def test_test_images_are_fitted_as_the_model_says(pictures, load):
    squash = ImageFit(rule=FitRule.SQUASH, edge=9, resample=Resample.BILINEAR)
    dataset = load(pictures, DataConfig(fit=squash), image_size=7)
    test, train = (read(pictures / split / "cat" / "0.png") for split in ("test", "train"))
    np.testing.assert_array_equal(dataset.test.images[0], fit_image(test, 7, fit=squash))
    whole = fit_image(train, 7, fit=replace(squash, edge=0))
    np.testing.assert_array_equal(dataset.train.images[0], whole)


def test_labels_are_those_of_the_model_by_name(pictures, cache_dir):
    shape = {"image_size": 11, "channels": 3}
    data = DataConfig(path=str(pictures))
    plain = load_split(data, "test", classes=2, **shape)
    named = load_split(data, "test", classes=("bird", "dog", "cat"), **shape)
    assert plain.labels.tolist() == [0, 0, 1, 1]
    assert named.labels.tolist() == [2, 2, 1, 1]
    assert named.matching.endswith("2 of 3, in another order: cat is 2")
    with pytest.raises(UserError, match=r"the model does not know: dog; .* begin with bird, cat"):
        load_split(data, "test", classes=("bird", "cat"), **shape)


def test_training_images_are_taken_from_all_over(pictures, load):
    whole, part = load(pictures), load(pictures, DataConfig(train_images=2))
    assert list(part.train.labels) == [0, 1]
    np.testing.assert_array_equal(part.train.images, whole.train.images[[0, 3]])
    np.testing.assert_array_equal(part.test.images, whole.test.images)
    with pytest.raises(UserError, match=r"train_images is 5, but .*pictures has 4 training images"):
        load(pictures, DataConfig(train_images=5))


@pytest.mark.parametrize("train_images", [0, 3])
def test_fingerprint_is_a_hash_of_pixels_and_labels(pictures, load, train_images):
    dataset = load(pictures, DataConfig(train_images=train_images))
    for split in (dataset.train, dataset.test):
        content = split.images.tobytes() + split.labels.tobytes()
        assert split.fingerprint == hashlib.sha256(content).hexdigest()
    both = f"{dataset.train.fingerprint} {dataset.test.fingerprint}"
    assert dataset.fingerprint == hashlib.sha256(both.encode()).hexdigest()


def test_second_load_decodes_nothing(pictures, load, monkeypatch):
    first = load(pictures)

    def fail(*_args, **_options):
        raise AssertionError("decoded again")

    monkeypatch.setattr(folder_source, "decode_image", fail)
    second = load(pictures, progress=fail)
    np.testing.assert_array_equal(first.train.images, second.train.images)
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("changes", [{"image_size": 5}, {"config": DataConfig(eval_crop=0.7)}])
def test_other_settings_are_decoded_anew(changes, pictures, load, cache_dir):
    load(pictures)
    before = len(list(cache_dir.iterdir()))
    load(pictures, **changes)
    assert len(list(cache_dir.iterdir())) > before


def test_changed_file_is_decoded_anew(pictures, load, random_pixels):
    first = load(pictures)
    path = pictures / "train" / "cat" / "0.png"
    Image.fromarray(random_pixels(99, height=11, width=11)).save(path)
    os.utime(path, ns=(1, 1))
    assert load(pictures).fingerprint != first.fingerprint


def test_digits_are_cached_wherever_one_stands(load, cache_dir, tmp_path, monkeypatch):
    load(config=DIGITS, image_size=8, channels=1, classes=10)
    before = sorted(cache_dir.iterdir())
    monkeypatch.chdir(tmp_path)
    load(config=DIGITS, image_size=8, channels=1, classes=10)
    assert sorted(cache_dir.iterdir()) == before


def test_progress_is_told(pictures, load):
    calls: list[tuple[str, int, int]] = []
    load(pictures, progress=lambda *call: calls.append(call))
    assert calls == [("decoding train images", 4, 4), ("decoding test images", 4, 4)]


def test_cached_classes_are_checked_too(pictures, load):
    load(pictures)
    with pytest.raises(UserError, match=r"has 2 classes, but the model has 3 \(model.classes\)"):
        load(pictures, classes=3)


def test_one_split_is_loaded_alone(pictures, load, cache_dir):
    config = DataConfig(path=str(pictures))
    sizes = {"image_size": 7, "channels": 3, "classes": 2}
    split = load_split(config, "test", **sizes)
    assert len(list(cache_dir.iterdir())) == 1
    assert split.fingerprint == load(pictures).test.fingerprint
    assert len(split) == 4


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        ("data_batch_1.bin", DataSource.CIFAR_BINARY),
        ("cifar-100-binary/test.bin", DataSource.CIFAR_BINARY),
        ("deep/er/train-0.parquet", DataSource.PARQUET),
        ("train/cat/0.png", DataSource.FOLDER),
        ("val/cat/0.png", DataSource.FOLDER),
    ],
)
def test_auto_recognises(make, kind, tmp_path):
    (tmp_path / make).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / make).touch()
    assert find_source(DataConfig(path=str(tmp_path))).kind is kind


def test_auto_recognises_an_archive(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    config = DataConfig(path=str(tmp_path / "cifar-10-binary.tar.gz"))
    assert find_source(config).kind is DataSource.CIFAR_BINARY


def test_auto_says_what_it_looked_for(tmp_path, load):
    (tmp_path / "readme.txt").touch()
    with pytest.raises(UserError, match=r"holds no data set: .*CIFAR.*parquet.*train/<class>/"):
        load(tmp_path)


def test_home_is_understood(pictures, monkeypatch):
    monkeypatch.setenv("HOME", str(pictures.parent))
    assert find_source(DataConfig(path="~/pictures")).root == pictures


def test_missing_path_is_refused(tmp_path, load):
    with pytest.raises(UserError, match="which does not exist"):
        load(tmp_path / "none")


def test_empty_path_is_refused(load):
    with pytest.raises(UserError, match="no data set is named"):
        load("")


@pytest.mark.parametrize("module", ["mpcvit.data", "mpcvit.data.batches"])
def test_import_is_light(module):
    heavy = {"jax", "flax", "pyarrow", "sklearn", "rich", "scipy", "matplotlib"}
    code = f"import sys, {module}; print(*sorted({heavy} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == ""


def test_validation_images_are_set_apart_evenly_by_class(load):
    shape = {"image_size": 8, "channels": 1, "classes": 10}
    whole = load(config=DIGITS, **shape)
    cut = load(config=replace(DIGITS, validation_images=53), **shape)
    assert whole.validation is None
    assert whole.judging is whole.test
    assert cut.judging is cut.validation
    assert list(np.bincount(cut.validation.labels)) == [6] * 3 + [5] * 7

    def pictures(split):
        return sorted(image.tobytes() for image in split.images)

    # nothing is lost, nothing is in both, and test images stay as they are
    assert sorted(pictures(cut.train) + pictures(cut.validation)) == pictures(whole.train)
    assert cut.test.fingerprint == whole.test.fingerprint
    assert cut.fingerprint != whole.fingerprint
    # the same images are set apart, however many are trained on
    fewer = load(config=replace(DIGITS, validation_images=53, train_images=99), **shape)
    assert fewer.validation.fingerprint == cut.validation.fingerprint
    assert len(fewer.train) == 99


def test_a_class_keeps_some_training_images(pictures, load):
    with pytest.raises(UserError, match=r"data.validation_images is 4, but class 0 has only 2"):
        load(pictures, DataConfig(validation_images=4))
