from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpcvit.artifacts.config import DataConfig, DataSource
from mpcvit.data import load_split
from mpcvit.errors import UserError

FOLDER = DataConfig(source=DataSource.FOLDER)


@pytest.fixture
def root(tmp_path: Path, random_pixels) -> Path:
    """Three training images and two test images of cats and dogs, with distinct contents."""
    root = tmp_path / "images"
    names = ["train/dog/1.png", "train/cat/b.png", "train/cat/a.PNG", "test/dog/x.png"]
    for seed, name in enumerate([*names, "test/cat/y.bmp"]):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random_pixels(seed)).save(path)
    return root


def test_round_trip_in_sorted_order(root, load, random_pixels):
    dataset = load(root, FOLDER)
    assert dataset.classes == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(
        dataset.train.images, np.stack([random_pixels(seed) for seed in (2, 1, 0)])
    )
    np.testing.assert_array_equal(
        dataset.test.images, np.stack([random_pixels(seed) for seed in (4, 3)])
    )


@pytest.mark.parametrize("name", ["val", "validation"])
def test_validation_serves_as_test(name, root, load):
    (root / "test").rename(root / name)
    assert len(load(root, FOLDER).test) == 2


def test_test_beats_validation(root, load, random_pixels):
    (root / "val" / "cat").mkdir(parents=True)
    assert len(load(root, FOLDER).test) == 2


def test_other_files_are_ignored(root, load):
    (root / "train" / "cat" / "notes.txt").write_text("hello")
    (root / "train" / "cat" / ".hidden.png").write_text("hello")
    (root / "train" / ".git").mkdir()
    assert len(load(root, FOLDER).train) == 3


def test_test_split_alone_is_enough(root, cache_dir):
    for path in sorted((root / "train").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "train").rmdir()
    split = load_split(DataConfig(path=str(root)), "test", image_size=7, channels=3, classes=2)
    assert split.labels.tolist() == [0, 1]


def test_missing_split_is_refused(root, load):
    (root / "train").rename(root / "learn")
    with pytest.raises(UserError, match="has no train images: looked for train/"):
        load(root, FOLDER)


def test_class_of_one_split_only_is_refused(root, load):
    (root / "test" / "cat").rename(root / "test" / "cow")
    with pytest.raises(UserError, match="test lacks the class folder 'cat'"):
        load(root, FOLDER)


def test_empty_class_is_refused(root, load):
    (root / "train" / "dog" / "1.png").unlink()
    with pytest.raises(UserError, match=r"class folder .*dog holds no images"):
        load(root, FOLDER)


def test_folder_without_classes_is_refused(tmp_path, load):
    (tmp_path / "images" / "train").mkdir(parents=True)
    (tmp_path / "images" / "test").mkdir()
    with pytest.raises(UserError, match="has no train images"):
        load(tmp_path / "images", FOLDER)


def test_corrupt_file_is_named(root, load):
    (root / "train" / "cat" / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(UserError, match=r"train/cat/b\.png"):
        load(root, FOLDER)


def test_file_with_alpha_is_named(root, load):
    Image.new("RGBA", (7, 7)).save(root / "train" / "cat" / "b.png")
    with pytest.raises(UserError, match=r"train/cat/b\.png is transparent in places"):
        load(root, FOLDER)
