"""Hugging Face's `ViTForImageClassification`: a folder with config.json.

Its blocks are `pre`; the config says heads, activation and LayerNorm eps. Files
name the parts of a block in one of two ways; the later is that of version 5.
"""

import math
from collections.abc import Mapping
from typing import Any

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Activation, BlockForm
from mpcvit.errors import UserError
from mpcvit.foreign.mapping import Layout, embedding, linear, match, nest, norm
from mpcvit.foreign.model import (
    ForeignModel,
    Options,
    Source,
    choose_heads,
    describe_model,
    name_classes,
    read_fraction,
    read_normalisation,
)
from mpcvit.kinds.table import SOFTMAX


def _layout(block: str, qkv: tuple[str, str, str], proj: str, up: str, down: str) -> Layout:
    return Layout(
        project="a Hugging Face ViTForImageClassification",
        rules=(
            *embedding(
                patch="vit.embeddings.patch_embeddings.projection",
                class_token="vit.embeddings.cls_token",
                position="vit.embeddings.position_embeddings",
            ),
            *norm("blocks_{n}/norm1", f"{block}.layernorm_before"),
            *linear(
                "blocks_{n}/attention/qkv",
                [f"{block}.attention.{part}" for part in qkv],
                "width",
                "width",
                optional_bias=True,
            ),
            *linear("blocks_{n}/attention/proj", f"{block}.attention.{proj}", "width", "width"),
            *norm("blocks_{n}/norm2", f"{block}.layernorm_after"),
            *linear("blocks_{n}/mlp/up", f"{block}.{up}", "hidden", "width"),
            *linear("blocks_{n}/mlp/down", f"{block}.{down}", "width", "hidden"),
            *norm("norm", "vit.layernorm"),
            *linear("head", "classifier", "classes", "width"),
        ),
        unused=("vit.pooler.dense.weight", "vit.pooler.dense.bias"),
    )


_LAYOUT = _layout(
    "vit.encoder.layer.{n}",
    ("attention.query", "attention.key", "attention.value"),
    "output.dense",
    "intermediate.dense",
    "output.dense",
)
_LAYOUT_5 = _layout(
    "vit.layers.{n}", ("q_proj", "k_proj", "v_proj"), "o_proj", "mlp.fc1", "mlp.fc2"
)

_ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "quick_gelu": Activation.GELU_SIGMOID,
    "relu": Activation.RELU,
}


def recognises(names: Mapping[str, Any]) -> bool:
    return any(name.startswith("vit.") for name in names)


def convert(source: Source, options: Options) -> ForeignModel:
    config, origin = source.config, source.origin
    if not config:
        raise UserError(
            f"{origin} is Hugging Face's, whose config.json says how to compute it: "
            "give the folder that holds both"
        )
    is_5 = any(name.startswith("vit.layers.") for name in source.tensors)
    matched = match(source.tensors, _LAYOUT_5 if is_5 else _LAYOUT, origin)
    heads = config.get("num_attention_heads")
    if heads is not None and type(heads) is not int:
        raise UserError(f"{origin}: num_attention_heads must be a whole number, not {heads!r}")
    model = describe_model(
        matched,
        origin,
        heads=choose_heads(stated=heads, options=options, origin=origin),
        block=BlockForm.PRE,
        norm_eps=_find_eps(config, origin),
        activation=_find_activation(config, origin),
    )
    mean, std = _find_normalisation(source.preprocessing, model.channels)
    return ForeignModel(
        model=model,
        architecture=Architecture.uniform(SOFTMAX, depth=model.depth, heads=model.heads),
        parameters=nest(matched.parameters),
        classes=name_classes(
            _list_names(config.get("id2label")), model.classes, options=options, origin=origin
        ),
        mean=mean,
        std=std,
        eval_crop=_find_crop(source.preprocessing),
        origin="Hugging Face's ViTForImageClassification",
    )


def _find_eps(config: Mapping[str, Any], origin: str) -> float:
    eps = config.get("layer_norm_eps", 1e-12)
    if type(eps) is not float or not math.isfinite(eps):
        raise UserError(f"{origin}: layer_norm_eps must be a number, not {eps!r}")
    return eps


def _find_activation(config: Mapping[str, Any], origin: str) -> Activation:
    name = config.get("hidden_act", "gelu")
    if name not in _ACTIVATIONS:
        raise UserError(
            f"{origin} uses hidden_act {name!r}, but only {', '.join(_ACTIVATIONS)} can be read"
        )
    return _ACTIVATIONS[name]


def _list_names(labels: Any) -> list[str] | None:
    if not isinstance(labels, Mapping):
        return None
    return [str(labels.get(str(number), number)) for number in range(len(labels))]


def _find_normalisation(
    preprocessing: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Return mean and std for pixels in [0, 1], or None if the scale is another."""
    scale = preprocessing.get("rescale_factor", 1 / 255)
    if preprocessing.get("do_rescale") is False or scale != 1 / 255:
        return None, None
    if preprocessing.get("do_normalize") is False:
        return (0.0,) * channels, (1.0,) * channels
    return read_normalisation(
        preprocessing.get("image_mean"), preprocessing.get("image_std"), channels
    )


def _find_crop(preprocessing: Mapping[str, Any]) -> float | None:
    """Return the part of an image that remains after resizing and cutting its centre."""
    if not preprocessing.get("do_center_crop"):
        return None
    size, crop = (_edge(preprocessing.get(name)) for name in ("size", "crop_size"))
    return None if size is None or crop is None else read_fraction(crop / size)


def _edge(size: Any) -> int | None:
    """Return the edge of a size: a number, or an object that names its edges."""
    if isinstance(size, Mapping):
        size = size.get("shortest_edge", size.get("height"))
    return size if type(size) is int and size > 0 else None
