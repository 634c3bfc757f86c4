"""Lowering with a folder of photos: no labels, few of them, and broken ones among them."""

import json

import numpy as np
import pytest
from PIL import Image

import mpcvit
from mpcvit.errors import UserError
from mpcvit.lowering.lower import widening_of
from mpcvit.lowering.program import SecureProgram
from tests.command import invoke
from tests.models import tiny

COUNT = 20
LOWER = ("--profile", "semi2k", "--error-budget", "1", "--guard", "off")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and photos of any size in a folder of folders, one of them broken."""
    folder = tmp_path_factory.mktemp("photos")
    tiny()[0].save(folder / "model.safetensors")
    rng = np.random.default_rng(3)
    for index in range(COUNT):
        file = folder / "photos" / f"day {index % 3}" / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (11, 7 + index, 3), np.uint8)).save(file)
    (folder / "photos" / "broken.jpg").write_bytes(b"no picture")
    (folder / "photos" / ".hidden.jpg").write_bytes(b"no picture")
    (folder / "photos" / "notes.txt").write_text("no picture")
    return folder


def test_photos_alone_calibrate_a_program(folder):
    model, photos, out = (folder / name for name in ("model.safetensors", "photos", "program"))
    text = invoke("lower", model, "--calibrate", photos, "--out", out, *LOWER).output
    assert "agreement  20 of 20 images of calibration get the network's class; 0 leave" in text
    assert "margin     raised to the power 1.95, because 20 images are few" in text
    assert text.count("skipped ") == 1
    assert "broken.jpg is not an image" in text
    assert "flat 128" in text
    program = SecureProgram.load(out)
    assert program.calibration.images == COUNT
    assert "photos" not in json.dumps(json.loads((out / "program.json").read_text()))
    with pytest.warns(UserWarning, match=r"left out: .*broken.jpg is not an image"):
        made = mpcvit.lower(model, photos, "semi2k", error_budget=1, guard="off")
    assert made.digest() == program.digest()


def test_what_cannot_calibrate_is_refused(folder):
    model, photos = folder / "model.safetensors", folder / "photos"
    with pytest.raises(UserError, match=r"broken\.jpg is not an image"):
        mpcvit.lower(model, photos, "semi2k", strict=True)
    with pytest.raises(UserError, match="7 of them can be used; calibration needs at least 20"):
        mpcvit.lower(model, photos / "day 1", "semi2k")
    with pytest.raises(UserError, match="there is no folder"):
        mpcvit.lower(model, folder / "nowhere", "semi2k")
    together = invoke(
        *("lower", model, "--calibrate", photos, "--data", photos, "--out", folder / "x"), code=2
    )
    assert "exclude each other" in together.output


def test_fewer_images_get_wider_margins():
    assert widening_of(20) > widening_of(100) > widening_of(1024) == widening_of(5000) == 1
