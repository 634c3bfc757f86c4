"""Checkpoints and programs that a stranger made: refused in a sentence, before they cost much."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from mpcvit.artifacts.architecture import Architecture
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.checkpoint import Checkpoint, digest, read_tensors
from tests.models import small_checkpoint, small_config

ARCHITECTURE = Architecture.uniform(table.RELU_SOFTMAX, depth=1, heads=3)
HUGE = 10**400  # a whole number of JSON that no float holds


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    path = tmp_path_factory.mktemp("ours") / "model.safetensors"
    small_checkpoint(small_config(depth=1), ARCHITECTURE).save(path)
    return read_tensors(path)


def load(folder, tensors, metadata, **changed):
    path = folder / "model.safetensors"
    save_file(tensors, path, {**metadata, **changed, "digest": digest(tensors)})
    return Checkpoint.load(path)


def test_what_was_not_changed_loads(parts, tmp_path):
    load(tmp_path, *parts)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("image_size", 10**9, "its image_size of 1000000000 is not within"),
        ("image_size", 2048, "its tokens of .* is not within"),
        ("depth", 10**9, "its depth of 1000000000 is not within"),
        ("classes", 10**12, "its classes of 1000000000000 is not within"),
        ("mlp_ratio", HUGE, "must be finite"),
        ("norm_eps", HUGE, "must be finite"),
    ],
    ids=["size", "tokens", "depth", "classes", "ratio", "eps"],
)
def test_sizes_that_no_model_has(parts, tmp_path, key, value, reason):
    """Positions of so many tokens would be made in memory only to compare their shape."""
    tensors, metadata = parts
    model = {**json.loads(metadata["model"]), key: value}
    with pytest.raises(UserError, match=reason):
        load(tmp_path, tensors, metadata, model=json.dumps(model))


def test_a_name_that_is_the_beginning_of_another(parts, tmp_path):
    tensors, metadata = parts
    name = next(iter(tensors))
    twice = {**tensors, f"{name}.more": np.zeros(1, np.float32)}
    with pytest.raises(UserError, match=f"'{name}' is a tensor, and the beginning of another"):
        load(tmp_path, twice, metadata)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
    ],
    ids=["type", "axes", "overflow", "offsets"],
)
def test_headers_that_numpy_cannot_follow(tmp_path, entry):
    header = json.dumps({"x": entry}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(UserError, match="is damaged or is not a safetensors file"):
        read_tensors(path)
