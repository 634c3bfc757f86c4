"""One small model for all tests with real processes, and proof that nothing is left over."""

import jax
import pytest

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.kinds import table
from mpcvit.secure.spu.stages import shared_parameters
from tests.models import random_pixels, small_checkpoint, small_config
from tests.two_party.processes import children

CONFIG = small_config()
ARCHITECTURE = Architecture.uniform(table.RELU, depth=2, heads=3, mlp=MlpForm.FUSED)


def shared_count(checkpoint):
    """How many numbers the model owner shares: its fused linears are products already."""
    return sum(leaf.size for leaf in jax.tree.leaves(shared_parameters(checkpoint)))


@pytest.fixture(scope="session")
def checkpoint():
    return small_checkpoint(CONFIG, ARCHITECTURE)


@pytest.fixture(scope="session")
def pixels():
    return random_pixels(CONFIG, 2)


@pytest.fixture
def nobody_left():
    """No process may be left after the test."""
    yield
    assert children("mpcvit.secure") == {}


@pytest.fixture(autouse=True)
def private_temporary_folder(monkeypatch, tmp_path):
    """What a run leaves in the temporary folder is found there."""
    import tempfile

    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    # the simulator keeps SPU's log for the life of the process
    assert all(entry.name.startswith("mpcvit-spu-") for entry in folder.iterdir())
