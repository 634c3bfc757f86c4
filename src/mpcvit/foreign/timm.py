"""timm's plain Vision Transformers: a file of tensors, or a folder from the hub.

Facts of that library: LayerNorm eps 1e-6, normalisation before attention and
MLP (`pre`), GeLU by erf, class token first. A file alone cannot say the number
of heads, so widths of the standard models imply theirs and others need --heads.
"""

import re
from collections.abc import Mapping
from typing import Any

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Activation, BlockForm
from mpcvit.errors import UserError
from mpcvit.foreign.mapping import Layout, Matched, embedding, linear, match, nest, norm
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

_LAYOUT = Layout(
    project="a timm ViT",
    rules=(
        *embedding(
            patch="patch_embed.proj",
            class_token="cls_token",
            position="pos_embed",
            optional_class_token=True,
        ),
        *norm("blocks_{n}/norm1", "blocks.{n}.norm1"),
        *linear(
            "blocks_{n}/attention/qkv",
            "blocks.{n}.attn.qkv",
            "3 width",
            "width",
            optional_bias=True,
        ),
        *linear("blocks_{n}/attention/proj", "blocks.{n}.attn.proj", "width", "width"),
        *norm("blocks_{n}/norm2", "blocks.{n}.norm2"),
        *linear("blocks_{n}/mlp/up", "blocks.{n}.mlp.fc1", "hidden", "width"),
        *linear("blocks_{n}/mlp/down", "blocks.{n}.mlp.fc2", "width", "hidden"),
        *norm("norm", "norm"),
        *linear("head", "head", "classes", "width"),
    ),
)

# The plain models: all that share these tensors, a class token, GeLU and eps 1e-6.
_HEADS_OF_FAMILY = {
    **{"vit_tiny": 3, "vit_small": 6, "vit_base": 12, "vit_large": 16},
    **{"vit_huge": 16, "vit_giant": 16, "vit_gigantic": 16, "test_vit": 2},
    **{"deit_tiny": 3, "deit_small": 6, "deit_base": 12},
}
_HEADS_OF_WIDTH = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16, 1664: 16}

_ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_tanh": Activation.GELU_TANH,
    "quick_gelu": Activation.GELU_SIGMOID,
    "relu": Activation.RELU,
}

# Arguments whose effect is seen in names and shapes, or only while training.
_HARMLESS = frozenset(
    (
        *("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads"),
        *("mlp_ratio", "qkv_bias", "proj_bias", "class_token", "fc_norm", "pre_norm", "final_norm"),
        *("qk_norm", "init_values", "reg_tokens", "no_embed_class", "dynamic_img_size"),
        *("dynamic_img_pad", "strict_img_size", "drop_rate", "pos_drop_rate", "patch_drop_rate"),
        *("proj_drop_rate", "attn_drop_rate", "drop_path_rate", "weight_init", "fix_init"),
        *("act_layer", "global_pool"),  # looked at below
    )
)


def recognises(names: Mapping[str, Any]) -> bool:
    return any(name.startswith(("patch_embed.", "blocks.")) for name in names)


def convert(source: Source, options: Options) -> ForeignModel:
    matched = match(source.tensors, _LAYOUT, source.origin)
    arguments = _section(source.config, "model_args", source.origin)
    _require_known_arguments(arguments, source.origin)
    _require_our_pooling(matched, source.config, arguments, source.origin)
    architecture = source.config.get("architecture")
    model = describe_model(
        matched,
        source.origin,
        heads=_find_heads(matched, architecture, arguments, options, source.origin),
        block=BlockForm.PRE,
        norm_eps=1e-6,
        activation=_find_activation(arguments, source.origin),
    )
    # Older hub folders have these entries at the top.
    pretrained = {**source.config, **_section(source.config, "pretrained_cfg", source.origin)}
    mean, std = read_normalisation(pretrained.get("mean"), pretrained.get("std"), model.channels)
    names = _list_names(source.config.get("label_names", pretrained.get("label_names")))
    return ForeignModel(
        model=model,
        architecture=Architecture.uniform(SOFTMAX, depth=model.depth, heads=model.heads),
        parameters=nest(matched.parameters),
        classes=name_classes(names, model.classes, options=options, origin=source.origin),
        mean=mean,
        std=std,
        eval_crop=read_fraction(pretrained.get("crop_pct")),
        origin=f"timm's {architecture or 'ViT'}",
    )


def _section(config: Mapping[str, Any], name: str, origin: str) -> Mapping[str, Any]:
    section = config.get(name) or {}
    if not isinstance(section, Mapping):
        raise UserError(f"{origin}: '{name}' in its config.json must be an object")
    return section


def _require_known_arguments(arguments: Mapping[str, Any], origin: str) -> None:
    unknown = [name for name in arguments if name not in _HARMLESS]
    if unknown:
        raise UserError(
            f"{origin} was made with model_args.{unknown[0]}, whose effect is not known here: "
            "only plain ViTs can be read"
        )


def _require_our_pooling(
    matched: Matched, config: Mapping[str, Any], arguments: Mapping[str, Any], origin: str
) -> None:
    """Require the class token, or the mean over patches if there is no class token."""
    stated = arguments.get("global_pool", config.get("global_pool"))
    if "embed/class_token" in matched.parameters:
        wanted, pooling = "token", stated or "token"
    else:
        wanted, pooling = "avg", stated
    if pooling is None:
        raise UserError(
            f"{origin} has no class token and does not say how it pools: "
            "give the folder that also holds its config.json"
        )
    if pooling != wanted:
        raise UserError(f"{origin} pools by {pooling!r}, but only {wanted!r} can be read here")


def _find_heads(
    matched: Matched,
    architecture: Any,
    arguments: Mapping[str, Any],
    options: Options,
    origin: str,
) -> int:
    stated = arguments.get("num_heads")
    if stated is not None and type(stated) is not int:
        raise UserError(f"{origin}: model_args.num_heads must be a whole number, not {stated!r}")
    if architecture is None:
        has_class_token = "embed/class_token" in matched.parameters
        usual = _HEADS_OF_WIDTH.get(matched.sizes["width"]) if has_class_token else None
        return choose_heads(stated=stated, usual=usual, options=options, origin=origin)
    family = re.sub(r"_patch[0-9]+_[0-9]+(_miil)?\Z", "", str(architecture))
    if family not in _HEADS_OF_FAMILY:
        raise UserError(
            f"{origin} is timm's {architecture!r}, which is not one of its plain ViTs: "
            + ", ".join(_HEADS_OF_FAMILY)
        )
    if stated is None:
        stated = _HEADS_OF_FAMILY[family]
    return choose_heads(stated=stated, options=options, origin=origin)


def _find_activation(arguments: Mapping[str, Any], origin: str) -> Activation:
    name = arguments.get("act_layer") or "gelu"
    if name not in _ACTIVATIONS:
        raise UserError(
            f"{origin} uses act_layer {name!r}, but only {', '.join(_ACTIVATIONS)} can be read"
        )
    return _ACTIVATIONS[name]


def _list_names(labels: Any) -> list[str] | None:
    """Labels come as a list, or as an object from number to name."""
    if isinstance(labels, Mapping):
        labels = [labels.get(str(number)) for number in range(len(labels))]
    if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
        return labels
    return None
