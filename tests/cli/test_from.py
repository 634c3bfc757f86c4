"""`--from`: trainings that start from trained weights."""

from dataclasses import replace

import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import DataConfig, DataSource, load_config
from mpcvit.artifacts.forms import NormForm
from mpcvit.artifacts.search import SearchResult
from mpcvit.cli.making.start import settings_from
from mpcvit.kinds import table
from mpcvit.model.checkpoint import Checkpoint, flatten_parameters
from tests.command import invoke
from tests.configs import FINE_TUNING, TINY
from tests.models import small_checkpoint, small_config

FEW = ("--set", "data.train_images=256", "--set", "train.epochs=1", "--set", "search.epochs=1")
FEW = (*FEW, "--set", "model.depth=1")  # which compiles in half the time
STILL = ("--set", "train.learning_rate=1e-12", "--set", "train.min_learning_rate=1e-12")
STILL = (*STILL, "--set", "train.warmup_learning_rate=1e-12")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("from")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPCVIT_CACHE", str(folder / "cache"))
        invoke("train", TINY, *FEW, "--out", folder / "first")
        yield folder


def test_a_training_starts_from_a_checkpoint_and_names_its_digest(folder):
    first = Checkpoint.load(folder / "first" / "model.safetensors")
    source = folder / "first" / "model.safetensors"
    out = folder / "second"
    text = invoke("train", TINY, *FEW, *STILL, "--from", source, "--out", out).output
    assert "arrays are taken over; new: none" in text
    second = Checkpoint.load(out / "model.safetensors")
    assert second.provenance.started_from == first.parameter_digest
    before, after = (flatten_parameters(own.parameters) for own in (first, second))
    for name in before:
        assert abs(before[name] - after[name]).max() < 1e-6, name
    assert str(folder) not in str(second.provenance)


def test_a_resumed_run_does_not_start_again(folder):
    source, out = folder / "first" / "model.safetensors", folder / "resumed"
    begin = ("train", TINY, *FEW, "--from", source, "--out", out)
    invoke(*begin)
    trained = Checkpoint.load(out / "model.safetensors").parameter_digest
    text = invoke(*begin, "--resume").output
    assert "taken over" not in text
    assert Checkpoint.load(out / "model.safetensors").parameter_digest == trained
    refused = invoke("train", TINY, *FEW, "--out", out, "--resume", code=2).output
    assert "'start' was" in refused.replace("\n", " ")


def test_a_search_starts_from_a_checkpoint(folder):
    source, out = folder / "first" / "model.safetensors", folder / "search"
    text = invoke("search", TINY, *FEW, "--from", source, "--out", out).output
    assert "taken over" in text
    first = Checkpoint.load(source)
    assert SearchResult.load(out).provenance.started_from == first.parameter_digest


@pytest.mark.long
def test_layer_norms_become_batch_norms(folder):
    source, out = folder / "first" / "model.safetensors", folder / "converted"
    gradual = ("--set", "model.norm=batch", "--set", "train.norm_transition_epochs=0.5")
    text = invoke("train", TINY, *FEW, *gradual, "--from", source, "--out", out).output
    assert "blocks_0.norm1.mean" in text.partition("new: ")[2]
    converted = Checkpoint.load(out / "model.safetensors")
    assert converted.model.norm is NormForm.BATCH
    assert converted.provenance.started_from == Checkpoint.load(source).parameter_digest
    assert np.ptp(converted.parameters["norm"]["variance"]) > 0  # taken from training images


def test_what_the_configuration_leaves_out_is_the_checkpoints():
    """Also norms, constants, and how images are normalised; classes are those of the data."""
    model = small_config(
        norm=NormForm.BATCH, layer_norms=("norm",), constants={"power": 4.0}, dropout=0.3
    )
    uniform = Architecture.uniform(table.SOFTMAX, depth=model.depth, heads=model.heads)
    data = DataConfig(mean=(0.25,) * 3, std=(0.7,) * 3, eval_crop=0.9, train_images=5)
    own = replace(small_checkpoint(model, uniform), data=data)
    settings = settings_from(own, FINE_TUNING, None, ["data.source=digits", "seed=3"])
    config = load_config(FINE_TUNING, settings)
    assert config.model == replace(model, classes=10, dropout=0.0)
    assert config.data == replace(data, source=DataSource.DIGITS, train_images=0)
    assert config.seed == 3


def test_another_shape_is_one_sentence(folder):
    source = folder / "first" / "model.safetensors"
    wider = ("--set", "model.width=32", "--out", folder / "wider")
    text = invoke("train", TINY, *FEW, "--from", source, *wider, code=2).output
    assert "has model.width = 16, but the configuration has 32" in text.replace("\n", " ")
