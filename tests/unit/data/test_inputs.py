"""Files, folders and arrays that a user wants classified."""

import numpy as np
import pytest
from PIL import Image

from mpcvit.artifacts.config import DataConfig
from mpcvit.data import list_pictures, make_inputs, sift_pictures
from mpcvit.errors import UserError
from tests.models import small_config

DATA = DataConfig(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


@pytest.fixture
def folder(tmp_path):
    for name, size in (("b.png", 6), ("a.png", 9)):
        Image.new("RGB", (size, size), "red").save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def test_a_folder_stands_for_its_pictures(folder):
    assert list_pictures([folder, folder / "b.png"]) == [
        folder / "a.png",
        folder / "b.png",
        folder / "b.png",
    ]


def test_what_is_not_there(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        list_pictures([tmp_path / "absent.png"])
    with pytest.raises(UserError, match=r"holds no images$"):
        list_pictures([tmp_path])


def test_pictures_in_folders_below_are_pointed_at(folder, tmp_path_factory):
    above = tmp_path_factory.mktemp("above")
    (above / "empty").mkdir()
    folder.rename(above / "full")
    said = f"holds no images of its own; name those below it, such as {above / 'full'}"
    with pytest.raises(UserError, match=said):
        list_pictures([above])


def test_one_broken_file_does_not_stop_a_folder(folder):
    broken = folder / "c.jpg"
    broken.write_bytes(b"no picture")
    (folder / "._a.png").write_bytes(b"what another system leaves beside a picture")
    (folder / "d.png").mkdir()
    kept, skipped = sift_pictures([folder])
    assert kept == [folder / "a.png", folder / "b.png"]
    assert [sentence.split(" is ")[0] for sentence in skipped] == [str(broken)]
    with pytest.raises(UserError, match=r"c\.jpg is not an image"):
        sift_pictures([folder], strict=True)
    with pytest.raises(UserError, match=r"c\.jpg is not an image"):
        sift_pictures([broken, folder])
    for path in kept:
        path.unlink()
    with pytest.raises(UserError, match=r"no picture can be read: .*c\.jpg is not an image"):
        sift_pictures([folder])


def test_all_that_a_model_cannot_take_is_named_at_once(folder):
    Image.new("L", (6, 6)).save(folder / "grey.png")
    grey = DataConfig(mean=(0.5,), std=(0.5,))
    with pytest.raises(UserError) as refused:
        make_inputs(list_pictures([folder]), small_config(channels=1), grey)
    assert str(refused.value).splitlines() == [
        f"{folder / name} has 3 channels, but the model takes 1 (model.channels)"
        for name in ("a.png", "b.png")
    ]


def test_resized_ones_are_counted(folder):
    inputs = make_inputs(list_pictures([folder]), small_config(), DATA)
    assert inputs.images.shape == (2, 6, 6, 3)
    assert inputs.resized == 1
    assert np.allclose(inputs.images, np.array([1.0, -1.0, -1.0]))


def test_no_image():
    with pytest.raises(UserError, match="there is no image"):
        make_inputs([], small_config(), DATA)
