"""Checkpoint: one safetensors file with all that a model needs to be used.

The file's metadata holds `format`, `model`, `architecture`, `data`, `classes`
and `provenance` as JSON, and `digest`, a SHA-256 over the tensors. Tensors are
named by their place in the parameter tree, joined by dots.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.artifacts.provenance import Provenance, advice_on
from mpcvit.artifacts.resolve import require_reasonable, validate
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError
from mpcvit.model.vit import parameter_shapes
from mpcvit.storage import read_json, replacing

FORMAT = "mpcvit-checkpoint/1"

Parameters = dict[str, Any]
Decoded = TypeVar("Decoded")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model on disk: parameters, and everything needed to run and trust them."""

    model: ModelConfig
    architecture: Architecture
    data: DataConfig
    classes: tuple[str, ...]
    parameters: Parameters
    provenance: Provenance

    def __post_init__(self) -> None:
        _check(self)

    @property
    def parameter_count(self) -> int:
        return sum(tensor.size for tensor in flatten_parameters(self.parameters).values())

    @property
    def parameter_digest(self) -> str:
        """A name for exactly these parameters."""
        return digest(flatten_parameters(self.parameters))

    def save(self, path: Path) -> None:
        tensors = flatten_parameters(self.parameters)
        # the path belongs to the trainer's machine
        data = replace(self.data, path="")
        metadata = {
            "format": FORMAT,
            "model": json.dumps(encode(self.model)),
            "architecture": self.architecture.to_json(),
            "data": json.dumps(encode(data)),
            "classes": json.dumps(self.classes),
            "provenance": json.dumps(encode(self.provenance)),
            "digest": digest(tensors),
        }
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata)

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        tensors, metadata = read_tensors(path)
        found = metadata.get("format")
        if found != FORMAT:
            raise UserError(
                f"{path} is not a checkpoint of this version: its format is {found!r}, not "
                f"{FORMAT!r}; foreign weights go through 'mpcvit import'"
            )
        if digest(tensors) != metadata.get("digest"):
            raise UserError(
                f"{path} is damaged: its tensors do not match the digest stored with them"
            )

        def part(name: str, decode: Callable[[Any], Decoded]) -> Decoded:
            if name not in metadata:
                raise UserError(f"{path} lacks its '{name}'")
            document = read_json(metadata[name], f"{path}: {name}")
            try:
                return decode(document)
            except (TypeError, KeyError, AttributeError) as error:
                raise UserError(f"{path}: its '{name}' cannot be understood: {error}") from error

        try:
            return cls(
                model=part("model", lambda document: decode(ModelConfig, document, "model")),
                architecture=part(
                    "architecture",
                    lambda document: Architecture.decoded(document, "architecture"),
                ),
                data=part("data", lambda document: decode(DataConfig, document, "data")),
                classes=part("classes", lambda names: tuple(str(name) for name in names)),
                parameters=nest(tensors),
                provenance=part(
                    "provenance", lambda document: decode(Provenance, document, "provenance")
                ),
            )
        except UserError as error:
            message = str(error)
            raise UserError(message if str(path) in message else f"{path}: {message}") from None


def flatten_parameters(parameters: Parameters) -> dict[str, np.ndarray]:
    """Name every tensor by its place in the tree.

    >>> list(flatten_parameters({"head": {"bias": np.zeros(2)}}))
    ['head.bias']
    """
    return {name: np.ascontiguousarray(leaf) for name, leaf in _flatten(parameters).items()}


def nest(tensors: Mapping[str, np.ndarray]) -> Parameters:
    """Return the tree of named tensors: the inverse of `flatten_parameters`.

    >>> nest({"head": np.zeros(1), "head.bias": np.zeros(1)})
    Traceback (most recent call last):
    mpcvit.errors.UserError: 'head' is a tensor, and the beginning of another one's name
    """
    for name in tensors:
        parts = name.split(".")
        for end in range(1, len(parts)):
            if (beginning := ".".join(parts[:end])) in tensors:
                raise UserError(
                    f"'{beginning}' is a tensor, and the beginning of another one's name"
                )
    return unflatten_dict(dict(tensors), sep=".")


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return a SHA-256 over names, types, shapes and bytes, independent of their order."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        total.update(f"{name}:{tensor.dtype}:{tensor.shape};".encode())
        total.update(tensor.data)
    return total.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file whole, with its metadata."""
    path = Path(path)
    if not path.is_file():
        wanted = "a checkpoint is a file (.safetensors)"
        if path.is_dir():
            raise UserError(f"{path} is a folder: {advice_on(path) or wanted}")
        raise UserError(f"there is no file {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    # NumPy has neither every type of the format nor as many axes
    except (SafetensorError, OSError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} is damaged or is not a safetensors file: {error}") from error


def _check(checkpoint: Checkpoint) -> None:
    """Refuse parameters that do not fit the model they come with."""
    model, architecture = checkpoint.model, checkpoint.architecture
    require_reasonable(model)
    validate(model, architecture)
    if len(checkpoint.classes) != model.classes:
        raise UserError(
            f"{len(checkpoint.classes)} class names were given for {model.classes} classes"
        )
    if len(checkpoint.data.mean) != model.channels:
        raise UserError(
            f"the normalisation has {len(checkpoint.data.mean)} channels, "
            f"but the model has {model.channels}"
        )
    checkpoint.data.require_size(model.image_size)
    expected = _shapes(parameter_shapes(model, architecture))
    found = _shapes(checkpoint.parameters)
    if expected == found:
        _require_statistics(checkpoint.parameters)
        return
    missing, unknown = (
        sorted(expected.keys() - found.keys()),
        sorted(found.keys() - expected.keys()),
    )
    if missing or unknown:
        raise UserError(
            "the parameters do not fit the model: "
            f"missing {_list(missing)}; not expected {_list(unknown)}"
        )
    name = next(name for name in expected if expected[name] != found[name])
    raise UserError(
        f"the parameters do not fit the model: '{name}' has shape {found[name]}, "
        f"but {expected[name]} is expected"
    )


def _require_statistics(parameters: Parameters) -> None:
    """Refuse means and variances of batch norms that are no numbers."""
    for name, tensor in _flatten(parameters).items():
        kind = name.rpartition(".")[2]
        if kind in ("mean", "variance"):
            values = np.asarray(tensor)
            if not np.isfinite(values).all() or (kind == "variance" and (values < 0).any()):
                raise UserError(
                    f"'{name}' has statistics that are no numbers: the training ran away; "
                    "set model.layer_norms, model.clip or train.clip_norm, and train again"
                )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in _flatten(tree).items()}


def _flatten(tree: Any) -> dict[str, Any]:
    flat: Any = flatten_dict(tree, sep=".")
    return flat


def _list(names: list[str], most: int = 5) -> str:
    if not names:
        return "none"
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def fuse_linears(architecture: Architecture, parameters: Any) -> Any:
    """Return the parameters with the products that fused MLPs multiply by.

    An MLP whose tokens are all fused keeps the product alone. One with other
    tokens too keeps its two linears beside the product.

        x W + b,  W = W1 W2,  b = b1 W2 + b2
    """
    fused = dict(parameters)
    for index, layer in enumerate(architecture.layers):
        forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,)
        if any(form.is_fused for form in forms):
            block = fused[f"blocks_{index}"]
            fused[f"blocks_{index}"] = {**block, "mlp": _fuse(frozenset(forms), block["mlp"])}
    return fused


def _fuse(forms: frozenset[MlpForm], mlp: Any) -> Any:
    up, down = mlp["up"], mlp["down"]
    product = {
        "kernel": up["kernel"] @ down["kernel"],
        "bias": up["bias"] @ down["kernel"] + down["bias"],
    }
    only_product = all(form.is_fused for form in forms)
    return {"fused": product} if only_product else {**mlp, "fused": product}
