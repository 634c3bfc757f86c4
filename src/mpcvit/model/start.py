"""The start of a training from trained parameters: what is taken over, and what is new."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from mpcvit.artifacts.config import ModelConfig
from mpcvit.errors import UserError
from mpcvit.model.checkpoint import Checkpoint, Parameters, flatten_parameters
from mpcvit.model.positions import resize_positions

# The keys of a model that its weights decide: another value would give them another meaning.
SHAPE = (
    *("patch_size", "channels", "depth", "heads", "width", "block", "pooling"),
    *(
        "pooled_norm",
        "extra_tokens",
        "embed_norm",
        "qkv_bias",
        "norm_eps",
        "mlp_ratio",
        "head_dim_qk",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Parameters to start a training with, and the names of their arrays by origin."""

    parameters: Parameters
    taken: tuple[str, ...]
    resized: tuple[str, ...]
    new: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.taken)} arrays are taken over"]
        if self.resized:
            parts.append(f"resized: {', '.join(self.resized)}")
        return "; ".join([*parts, f"new: {', '.join(self.new) or 'none'}"])


def require_same_shape(source: ModelConfig, model: ModelConfig) -> None:
    """Refuse trained parameters whose model has another shape."""
    for key in SHAPE:
        theirs, ours = getattr(source, key), getattr(model, key)
        if theirs != ours:
            raise UserError(
                f"the checkpoint to start from has model.{key} = {_plain(theirs)}, but the "
                f"configuration has {_plain(ours)}: set model.{key}={_plain(theirs)}"
            )


def start_from(
    source: Checkpoint, fresh: Any, model: ModelConfig, classes: tuple[str, ...]
) -> Start:
    """Return fresh parameters in which those of a checkpoint replace all that fit.

    Rows of the head are taken by the names of the classes. If the checkpoint lacks one of
    them, the head is new. Positions are resized to another number of patches.
    """
    require_same_shape(source.model, model)
    found, flat = (
        flatten_parameters(source.parameters),
        dict[str, Any](flatten_dict(fresh, sep=".")),
    )
    names: dict[str, list[str]] = {"taken": [], "resized": [], "new": []}
    for name, leaf in flat.items():
        value, how = found.get(name), "taken"
        if name.startswith("head."):
            value = _rows_of(source, classes, value)
        elif name == "embed.position" and value is not None and value.shape != leaf.shape:
            value, how = resize_positions(value, leaf.shape[0], model.patches), "resized"
        if value is None or value.shape != leaf.shape:
            names["new"].append(name)
        else:
            flat[name] = value.astype(np.float32)
            names[how].append(name)
    return Start(
        parameters=unflatten_dict(flat, sep="."),
        **{how: tuple(own) for how, own in names.items()},
    )


def _rows_of(
    source: Checkpoint, classes: tuple[str, ...], value: np.ndarray | None
) -> np.ndarray | None:
    """Return the part of a head's array that belongs to classes, or None if one is unknown."""
    if value is None or not set(classes) <= set(source.classes):
        return None
    return value[..., [source.classes.index(name) for name in classes]]


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
