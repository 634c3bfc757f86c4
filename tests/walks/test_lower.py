"""`mpcvit lower`: how many files a checkpoint passes on its way to a program."""

import pytest
from PIL import Image

from mpcvit.artifacts.architecture import Architecture
from mpcvit.kinds.table import RELU_SOFTMAX
from tests.models import random_pixels, small_checkpoint, small_config
from tests.walks.tracer import trace

MOST = 38  # from the command to the file
MOST_IN_LOWERING = 12


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    config = small_config(depth=1)
    architecture = Architecture.uniform(RELU_SOFTMAX, depth=1, heads=3)
    checkpoint = small_checkpoint(config, architecture)
    checkpoint.save(folder / "model.safetensors")
    for index, pixels in enumerate(random_pixels(config, 2 * config.classes)):
        name = checkpoint.classes[index % config.classes]
        for split in ("train", "test"):
            (folder / "data" / split / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / "data" / split / name / f"{index}.png")
    arguments = ["lower", folder / "model.safetensors", "--data", folder / "data"]
    choices = ["--profile", "semi2k", "--error-budget", 1, "--out", folder / "program"]
    return trace([*arguments, *choices], folder)["MainThread"]


def test_the_whole_walk(walk):
    assert "make_program.py" in walk.counted
    assert len(walk.counted) <= MOST


def test_the_walk_through_lowering(walk):
    inside = [file for file in walk.counted if file.startswith("lowering/")]
    assert "lowering/fit_plan.py" in inside
    assert len(inside) <= MOST_IN_LOWERING


def test_no_two_files_call_each_other(walk):
    assert not walk.pairs
