"""`mpcvit run --simulate`: how many files an image passes on its way to a class."""

import pytest
from PIL import Image

from mpcvit.artifacts.architecture import Architecture
from mpcvit.kinds.table import RELU_SOFTMAX
from mpcvit.lowering.lower import lower
from tests.models import random_pixels, small_checkpoint, small_config
from tests.walks.tracer import trace

MOST_IN_THE_COMMAND = 12
MOST_IN_A_PARTY = 28  # where the data owner compiles; 26 where the model owner does


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    config = small_config(depth=1)
    architecture = Architecture.uniform(RELU_SOFTMAX, depth=1, heads=3)
    checkpoint = small_checkpoint(config, architecture)
    program = lower(checkpoint, list(random_pixels(config, 64)), "semi2k", error_budget=1.0)
    program.save(folder / "program")
    Image.fromarray(random_pixels(config, 1)[0]).save(folder / "photo.png")
    arguments = ["run", "--simulate", folder / "program", folder / "photo.png"]
    return trace([*arguments, "--profile", "semi2k"], folder)


def test_the_command(walks):
    assert len(walks["MainThread"].counted) <= MOST_IN_THE_COMMAND


def test_the_parties(walks):
    parties = [walk for walk in walks.values() if "secure/spu/link.py" in walk.files[:2]]
    assert len(parties) == 2
    for walk in parties:
        assert "secure/protocol.py" in walk.counted
        assert len(walk.counted) <= MOST_IN_A_PARTY


def test_no_two_files_call_each_other(walks):
    found = {pair for walk in walks.values() for pair in walk.pairs}
    assert not found
