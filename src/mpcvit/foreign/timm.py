"""timm's Vision Transformers: a file of tensors, or a folder from the hub.

Facts of that library: LayerNorm eps 1e-6 (CLIP's 1e-5), normalisation before attention and
MLP (`pre`), GeLU by erf, class token first. A file alone cannot say the number of heads, so
widths of the standard models imply theirs and others need --heads.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Activation, BlockForm, ModelConfig, Pooling
from mpcvit.foreign.assemble import SECOND_HEAD, change_size, cover, scale_fit
from mpcvit.foreign.mapping import (
    Layout,
    Matched,
    Rule,
    embedding,
    linear,
    match,
    nest,
    norm,
    tokens,
)
from mpcvit.foreign.model import (
    ForeignModel,
    Options,
    Source,
    choose_heads,
    describe_model,
    name_classes,
)
from mpcvit.foreign.preprocessing import read_timm
from mpcvit.foreign.tensor import Tensor
from mpcvit.foreign.unusable import UnusableError
from mpcvit.kinds.table import SOFTMAX

_LAYOUT = Layout(
    project="a timm ViT",
    rules=(
        *embedding(
            patch="patch_embed.proj",
            class_token="cls_token",
            position="pos_embed",
            optional_class_token=True,
            optional_bias=True,
        ),
        *norm("embed/norm", "norm_pre", optional=True),
        tokens("dist_token"),
        tokens("reg_token"),
        *norm("blocks_{n}/norm1", "blocks.{n}.norm1"),
        *linear(
            "blocks_{n}/attention/qkv",
            "blocks.{n}.attn.qkv",
            "3 width",
            "width",
            optional_bias=True,
        ),
        *linear("blocks_{n}/attention/proj", "blocks.{n}.attn.proj", "width", "width"),
        Rule("scale1_{n}", ("blocks.{n}.ls1.gamma",), ("width",), optional=True),
        *norm("blocks_{n}/norm2", "blocks.{n}.norm2"),
        *linear("blocks_{n}/mlp/up", "blocks.{n}.mlp.fc1", "hidden", "width"),
        *linear("blocks_{n}/mlp/down", "blocks.{n}.mlp.fc2", "width", "hidden"),
        Rule("scale2_{n}", ("blocks.{n}.ls2.gamma",), ("width",), optional=True),
        *norm("norm", "norm", optional=True),
        *norm("pooled_norm", "fc_norm", optional=True),
        *linear("head", "head", "classes", "width"),
        *linear(SECOND_HEAD, "head_dist", "classes", "width", optional=True),
    ),
)

# Names of the models that share these tensors, by their sizes.
_NAME = re.compile(
    r"(?P<size>test_vit|(vit|deit3?)_[a-z]+)(_distilled)?(_patch[0-9]+)?(_reg[0-9])?"
    r"(_gap|_dinov2|(?P<clip>_clip)(?P<quick>_quickgelu)?)?(_[0-9]+)?(_miil)?"
)
_HEADS = {
    **{"vit_tiny": 3, "vit_small": 6, "vit_medium": 8, "vit_mediumd": 8, "vit_betwixt": 10},
    **{"vit_base": 12, "vit_large": 16, "vit_huge": 16, "vit_giant": 16, "vit_gigantic": 16},
    **{"deit_tiny": 3, "deit_small": 6, "deit_base": 12, "test_vit": 2},
    **{"deit3_small": 6, "deit3_medium": 8, "deit3_base": 12, "deit3_large": 16, "deit3_huge": 16},
}
_HEADS_OF_NAME = {"vit_base_patch16_gap_224": 16}  # which its size does not have
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
    config = source.config
    architecture = config.get("architecture")
    name = _find_name(architecture)
    _require_plain(source.tensors)
    matched = match(source.tensors, _LAYOUT)
    arguments = _section(config, "model_args")
    _require_known_arguments(arguments)
    _require_a_norm(matched)
    # Older hub folders have these entries at the top.
    pretrained = {**config, **_section(config, "pretrained_cfg")}
    sizes = _stated_sizes(arguments, pretrained)
    model = describe_model(
        matched,
        pooling=_find_pooling(matched, config, arguments),
        placed=_count_placed(matched, sizes, arguments),
        heads=_find_heads(matched, name, arguments, options),
        block=BlockForm.PRE,
        norm_eps=1e-5 if _is_clip(matched, name) else 1e-6,
        activation=_find_activation(arguments, name),
    )
    made_for = _find_size(sizes, model)
    model = change_size(model, matched, options.image_size or model.image_size, antialias=True)
    preprocessing = read_timm(
        pretrained,
        image_size=options.image_size or made_for,
        channels=model.channels,
    )
    names = config.get("label_names", pretrained.get("label_names"))
    return ForeignModel(
        model=model,
        architecture=Architecture.uniform(SOFTMAX, depth=model.depth, heads=model.heads),
        parameters=nest(matched.parameters),
        classes=name_classes(names, model.classes, key="label_names", options=options),
        preprocessing=scale_fit(preprocessing, model),
        origin=f"timm's {architecture or 'ViT'}",
    )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name) or {}
    if not isinstance(section, Mapping):
        raise UnusableError(f"has '{name}' in its config.json, which must be an object")
    return section


def _require_known_arguments(arguments: Mapping[str, Any]) -> None:
    unknown = [name for name in arguments if name not in _HARMLESS]
    if unknown:
        raise UnusableError(
            f"was made with model_args.{unknown[0]}, whose effect is not known here: "
            "only plain ViTs can be read"
        )


def _require_plain(tensors: Mapping[str, Tensor]) -> None:
    """Refuse by its name what match() could only list."""
    if not any(name.startswith("head.") for name in tensors):
        raise UnusableError(
            "has no classifier, only the network before it: give it num_classes in "
            "timm.create_model, and train that first"
        )
    up, down = (tensors.get(f"blocks.0.mlp.{part}.weight") for part in ("fc1", "fc2"))
    if up and down and up.shape[:1] == tuple(2 * size for size in down.shape[1:]):
        raise UnusableError(
            "has gated MLPs (SwiGLU), which cannot be read here: take a ViT with plain MLPs"
        )


def _require_a_norm(matched: Matched) -> None:
    if not {"norm/scale", "pooled_norm/scale"} & set(matched.parameters):
        raise UnusableError(
            "looks like a timm ViT, but it lacks norm.weight, norm.bias: only networks "
            "with a last norm can be read"
        )


def _find_pooling(
    matched: Matched, config: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Pooling:
    """Return what the head reads; a norm after pooling comes with the mean."""
    has_token = "embed/class_token" in matched.parameters
    stated = arguments.get("global_pool", config.get("global_pool"))
    if stated is None and has_token:
        stated = "avg" if "pooled_norm/scale" in matched.parameters else "token"
    if stated is None:
        raise UnusableError(
            "has no class token and does not say how it pools: "
            "give the folder that also holds its config.json"
        )
    known = {"token": Pooling.CLASS, "avg": Pooling.MEAN} if has_token else {"avg": Pooling.MEAN}
    if not isinstance(stated, str) or stated not in known:
        raise UnusableError(
            f"pools by {stated!r}, but only {' and '.join(map(repr, known))} can be read "
            "here: train its head with global_pool = 'avg'"
        )
    return known[stated]


def _is_clip(matched: Matched, name: re.Match[str] | None) -> bool:
    """Return whether this is CLIP's tower; without a name, a norm after the embedding says it."""
    return "embed/norm/scale" in matched.parameters if name is None else bool(name["clip"])


def _count_placed(
    matched: Matched, sizes: Sequence[int], arguments: Mapping[str, Any]
) -> int | None:
    """Return how many tokens before the patches have positions, or None if it is not said."""
    positions, patch = len(matched.parameters["embed/position"]), matched.sizes["patch"]
    sides = [edge // patch for edge in sizes[:1]]
    only_patches = arguments.get("no_embed_class") is True or positions in [n * n for n in sides]
    return 0 if only_patches else None


def _find_size(sizes: Sequence[int], model: ModelConfig) -> int:
    """Return the pixels of an image; the last few may make no whole patch."""
    for edge in sizes:
        if cover(edge, model.patch_size) == model.image_size:
            return edge
    return model.image_size


def _stated_sizes(arguments: Mapping[str, Any], pretrained: Mapping[str, Any]) -> list[int]:
    """Return the sizes of images that are stated, the network's before that of its pictures."""
    stated = arguments.get("img_size"), pretrained.get("input_size")
    edges = [sides[-2:] if isinstance(sides, list) else [sides] for sides in stated]
    for sides in edges:
        if len(set(map(str, sides))) > 1:
            raise UnusableError(
                f"takes images of {' x '.join(map(str, sides))} pixels, but only square "
                "ones can be read: train it with square images"
            )
    return [sides[0] for sides in edges if sides and type(sides[0]) is int]


def _find_name(architecture: Any) -> re.Match[str] | None:
    """Return the parts of a model's name, or None if there is none."""
    if architecture is None:
        return None
    name = _NAME.fullmatch(str(architecture))
    if name is None or name["size"] not in _HEADS:
        raise UnusableError(
            f"is timm's {architecture!r}, which is not one of the ViTs that can be read: "
            + ", ".join(_HEADS)
        )
    return name


def _find_heads(
    matched: Matched,
    name: re.Match[str] | None,
    arguments: Mapping[str, Any],
    options: Options,
) -> int:
    stated = arguments.get("num_heads")
    if stated is not None and type(stated) is not int:
        raise UnusableError(f"has model_args.num_heads {stated!r}, which must be a whole number")
    if name is not None:
        usual = _HEADS_OF_NAME.get(name[0], _HEADS[name["size"]])
        stated = usual if stated is None else stated
        return choose_heads(stated=stated, options=options)
    has_class_token = "embed/class_token" in matched.parameters
    usual = _HEADS_OF_WIDTH.get(matched.sizes["width"]) if has_class_token else None
    return choose_heads(stated=stated, usual=usual, options=options)


def _find_activation(arguments: Mapping[str, Any], name: re.Match[str] | None) -> Activation:
    usual = "quick_gelu" if name is not None and name["quick"] else "gelu"
    stated = arguments.get("act_layer") or usual
    if not isinstance(stated, str) or stated not in _ACTIVATIONS:
        raise UnusableError(
            f"uses act_layer {stated!r}, but only {', '.join(_ACTIVATIONS)} can be read"
        )
    return _ACTIVATIONS[stated]
