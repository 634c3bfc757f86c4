"""Checkpoint: round trip, and refusal of anything else."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import DataConfig
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.checkpoint import Checkpoint, flatten_parameters
from tests.models import perturbed_parameters, small_config

K = table


def make(kind=K.THE_X, **changes):
    config = small_config()
    architecture = Architecture.uniform(kind, depth=2, heads=3)
    fields = {
        "model": config,
        "architecture": architecture,
        "data": DataConfig(mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), path="/home/someone/images"),
        "classes": tuple("abcdefg"),
        "parameters": perturbed_parameters(config, architecture),
        "provenance": Provenance(
            origin="trained",
            environment=Environment.current(),
            config={
                "data": {"path": "/home/someone/images"},
                "distributed": {"coordinator": "someones-host:1234", "processes": 2},
            },
            metrics={"test_top1": 0.5},
        ),
    }
    return Checkpoint(**{**fields, **changes})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    make().save(path)
    return path


def edit_metadata(path, **changes):
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    metadata = {key: value for key, value in {**metadata, **changes}.items() if value is not None}
    save_file(tensors, path, metadata)


def test_round_trip(path):
    before, after = make(), Checkpoint.load(path)
    assert after.model == before.model
    assert after.architecture == before.architecture
    assert after.classes == before.classes
    assert after.data.mean == before.data.mean
    assert after.provenance.metrics == {"test_top1": 0.5}
    one, other = flatten_parameters(before.parameters), flatten_parameters(after.parameters)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_the_trainers_path_is_not_passed_on(path):
    assert b"someone" not in path.read_bytes()
    assert Checkpoint.load(path).provenance.config["distributed"]["processes"] == 2


def test_every_truncation_is_refused(path):
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="damaged or is not a safetensors file"):
            Checkpoint.load(path)


def test_a_flipped_bit_is_refused(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="do not match the digest"):
        Checkpoint.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "mpcvit-checkpoint/99"}, "its format is 'mpcvit-checkpoint/99'"),
        ({"format": None}, "its format is None"),
        ({"model": None}, "lacks its 'model'"),
        ({"model": "{"}, "not valid JSON"),
        ({"model": "{}"}, "key 'image_size' is missing"),
        ({"classes": "3"}, "its 'classes' cannot be understood"),
        ({"classes": '["a"]'}, "1 class names were given for 7 classes"),
        ({"provenance": "{}"}, "provenance: key 'origin' is missing"),
    ],
)
def test_bad_metadata_is_refused(path, changes, message):
    edit_metadata(path, **changes)
    with pytest.raises(UserError) as refused:
        Checkpoint.load(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_parameters_of_another_architecture_are_refused(path):
    other = Architecture.uniform(K.SOFTMAX, depth=2, heads=3)
    edit_metadata(path, architecture=other.to_json())
    with pytest.raises(UserError, match=r"not expected blocks_0\.attention\.inverse"):
        Checkpoint.load(path)


def test_parameters_of_another_shape_are_refused(path):
    with safe_open(path, "numpy") as file:
        model = json.loads(file.metadata()["model"])
    edit_metadata(path, model=json.dumps({**model, "the_x_hidden": 13}))
    with pytest.raises(UserError, match=r"inverse.* has shape \(.*11.*\), but"):
        Checkpoint.load(path)


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        Checkpoint.load(tmp_path / "none.safetensors")
