"""The state of a run, with which it resumes exactly where it stopped."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from mpcvit.artifacts.config import Config
from mpcvit.codec import encode
from mpcvit.errors import UserError
from mpcvit.model.checkpoint import digest, read_tensors
from mpcvit.storage import read_json, replacing

FORMAT = "mpcvit-state/1"


class State(NamedTuple):
    """Parameters, optimiser, step, and the running sums of the epoch at hand."""

    parameters: Any
    optimizer: Any
    step: jax.Array
    sums: dict[str, jax.Array]

    @classmethod
    def initial(cls, parameters: Any, optimizer: Any, sums: dict[str, jax.Array]) -> "State":
        return cls(parameters, optimizer, jnp.zeros((), jnp.int32), sums)


def save_state(path: Path, state: State, identity: dict[str, Any]) -> None:
    """Write a state, with the identity of its run (see `identify`)."""
    tensors = {name: np.asarray(leaf) for name, leaf in _named_leaves(state).items()}
    metadata = {
        "format": FORMAT,
        "identity": json.dumps(identity),
        "digest": digest(tensors),
    }
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata)


def load_state(path: Path, like: State, identity: dict[str, Any]) -> State:
    """Read a state that fits `like`, from a run that is the same."""
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT or metadata.get("digest") != digest(tensors):
        raise UserError(f"{path} is damaged or of another version; start again with --fresh")
    before = read_json(metadata["identity"], str(path))
    if before != identity:
        raise UserError(
            f"{path} belongs to another run: {first_difference(before, identity)}; "
            "use the same settings, or start again with --fresh"
        )
    expected = {name: leaf.shape for name, leaf in _named_leaves(like).items()}
    if expected != {name: tensor.shape for name, tensor in tensors.items()}:
        raise UserError(f"{path} holds parameters of another model; start again with --fresh")
    leaves = [tensors[name] for name in expected]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def identify(config: Config, task_identity: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the result of a run: settings, and the identity of its task.

    Paths, workers, memory and how often a run is saved are left out. The data's fingerprint
    stands for the images. A task that searches or distils has these settings in its
    identity.
    """
    plain = encode(config)
    for section, key in (
        *(("data", "path"), ("data", "source"), ("data", "train_images"), ("data", "workers")),
        ("data", "validation_images"),
        *(("train", "eval_batch_size"), ("train", "checkpoint_every_minutes")),
        ("train", "remat"),
    ):
        del plain[section][key]
    for section in ("distributed", "name", "search", "derive", "distill"):
        plain.pop(section, None)
    return {**plain, **task_identity}


def _named_leaves(state: State) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def first_difference(before: Any, now: Any, path: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in (*now, *before):
            if before.get(key) != now.get(key):
                return first_difference(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    return f"'{path}' was {json.dumps(before)} and is {json.dumps(now)}"
