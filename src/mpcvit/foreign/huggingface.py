"""Hugging Face's image classifiers: a folder with config.json.

Blocks are `pre`; the config says heads, activation and LayerNorm eps. Files name the parts
of a block in one of two ways; the later is that of version 5.

    ViT                the head reads the class token
    DeiT               also a distillation token; with a second head, their mean
    DINOv2             layer scale, maybe register tokens; class token and mean of the patches
    CLIP               a norm after the embedding, no last norm; mean of the patches
    SigLIP             no class token; mean of the patches
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Activation, BlockForm, Pooling
from mpcvit.artifacts.forms import NormForm
from mpcvit.foreign.assemble import SECOND_HEAD, change_size, cover, scale_fit
from mpcvit.foreign.mapping import Layout, Rule, embedding, linear, match, nest, norm, tokens
from mpcvit.foreign.model import (
    ForeignModel,
    Options,
    Source,
    choose_heads,
    describe_model,
    name_classes,
)
from mpcvit.foreign.preprocessing import read_huggingface
from mpcvit.foreign.unusable import UnusableError, about
from mpcvit.kinds.table import SOFTMAX

_POOLER = ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2")  # of SigLIP
_HEADS, _IMAGE_SIZE = 12, 224  # of all families, where a config is silent
_ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "quick_gelu": Activation.GELU_SIGMOID,
    "relu": Activation.RELU,
}


@dataclass(frozen=True, kw_only=True)
class _Family:
    """A family of models: what they have in common, and what their config leaves out."""

    name: str
    processor: str
    pooling: Pooling = Pooling.CLASS
    eps: float = 1e-12
    activation: str = "gelu"
    placed: int = 1  # tokens before the patches that have positions
    norm: NormForm | None = None  # of the head
    is_nested: bool = False  # settings are in vision_config
    resizes: bool = False  # takes images of any size, and interpolates positions
    antialias: bool = False  # in doing so
    alike: tuple[str, ...] = ()  # other model types, with the same names and formulas


FAMILIES = {
    "vit": _Family(name="ViT", processor="ViT", alike=("vit_msn",)),
    "deit": _Family(name="DeiT", processor="DeiT", placed=2),
    "dinov2": _Family(
        name="Dinov2", processor="Bit", pooling=Pooling.CLASS_MEAN, eps=1e-6, resizes=True
    ),
    "dinov2_with_registers": _Family(
        name="Dinov2WithRegisters",
        processor="Bit",
        pooling=Pooling.CLASS_MEAN,
        eps=1e-6,
        resizes=True,
        antialias=True,
    ),
    "clip": _Family(
        name="CLIP",
        processor="CLIP",
        pooling=Pooling.MEAN,
        eps=1e-5,
        activation="quick_gelu",
        norm=NormForm.LINEAR,
        is_nested=True,
        alike=("metaclip_2",),
    ),
    "siglip": _Family(
        name="Siglip",
        processor="Siglip",
        pooling=Pooling.MEAN,
        eps=1e-6,
        activation="gelu_pytorch_tanh",
        placed=0,
        is_nested=True,
    ),
}


# By the model types of config.json.
TYPES = {kind: family for key, family in FAMILIES.items() for kind in (key, *family.alike)}


def recognises(names: Mapping[str, Any]) -> bool:
    return _family_of(names) is not None


def convert(source: Source, options: Options) -> ForeignModel:
    config = source.config
    if not config:
        raise UnusableError(
            "is Hugging Face's, whose config.json says how to compute it: "
            "give the folder that holds both"
        )
    key = _family_of(source.tensors)
    assert key is not None
    family, layout = FAMILIES[key], _layout(key, source.tensors)
    if not any(name.endswith("classifier.weight") for name in source.tensors):
        refuse_headless(family)
    if config.get("quantization_config"):
        raise UnusableError(
            "is quantised, as quantization_config in its config.json says: save the "
            "model in float32, without quantisation"
        )
    matched = match(source.tensors, layout)
    settings = config.get("vision_config", {}) if family.is_nested else config
    if not isinstance(settings, Mapping):
        raise UnusableError("has 'vision_config' in its config.json, which must be an object")
    heads = settings.get("num_attention_heads", _HEADS)
    if heads is not None and type(heads) is not int:
        raise UnusableError(f"has num_attention_heads {heads!r}, which must be a whole number")
    model = describe_model(
        matched,
        heads=choose_heads(stated=heads, options=options),
        block=BlockForm.PRE,
        pooling=family.pooling,
        placed=family.placed,
        norm_eps=_find_eps(settings, family),
        activation=_find_activation(settings, family),
    )
    stated = settings.get("num_hidden_layers")
    if stated not in (None, model.depth):
        raise UnusableError(
            f"has {model.depth} layers, but its config.json says num_hidden_layers = "
            f"{stated!r}: download both again"
        )
    with about(str(Path(source.origin).parent / source.preprocessor)):
        preprocessing = read_huggingface(
            source.preprocessing, usual=family.processor, channels=model.channels
        )
    found, patch = preprocessing.image_size, model.patch_size
    covered = None if found is None else cover(found, patch)
    wanted = options.image_size or (family.resizes and covered) or model.image_size
    # what the network was made for, beyond which it takes nothing there
    fits = found in (None, wanted, _find_size(settings)) or family.resizes
    if not options.image_size and not (fits and covered in (None, wanted)):
        other = f", or add --image-size {covered} to interpolate positions"
        raise UnusableError(
            f"takes images of {model.image_size} pixels, but its {source.preprocessor} "
            f"makes images of {found}: mend that file"
            + (other if covered not in (0, wanted) else "")
        )
    model = change_size(model, matched, wanted, antialias=family.antialias)
    architecture = Architecture.uniform(SOFTMAX, depth=model.depth, heads=model.heads)
    return ForeignModel(
        model=model,
        architecture=replace(architecture, norm=family.norm),
        parameters=nest(matched.parameters),
        classes=name_classes(
            config.get("id2label"), model.classes, key="id2label", options=options
        ),
        preprocessing=scale_fit(preprocessing, model),
        origin=f"Hugging Face's {family.name}ForImageClassification",
    )


def refuse_headless(family: _Family) -> NoReturn:
    raise UnusableError(
        f"has no classifier, only the network before it: train one with "
        f"{family.name}ForImageClassification first"
    )


def _family_of(names: Mapping[str, Any]) -> str | None:
    prefixes = {name.partition(".")[0] for name in names}
    if "vision_model" in prefixes:
        has_class = "vision_model.embeddings.class_embedding" in names
        return "clip" if has_class else "siglip"
    return next((key for key in FAMILIES if key in prefixes), None)


def _layout(key: str, names: Mapping[str, Any]) -> Layout:
    family = FAMILIES[key]
    project = f"a Hugging Face {family.name}ForImageClassification"
    if family.is_nested:
        return _tower_layout(project, has_class=key == "clip")
    is_5 = any(".attention.q_proj." in name for name in names)
    if family.pooling is Pooling.CLASS_MEAN:
        return _dino_layout(project, key, is_5)
    return _vit_layout(project, key, is_5, "cls_classifier.weight" in names)


def _attention(block: str, is_5: bool) -> tuple[Rule, ...]:
    old = ("attention.query", "attention.key", "attention.value"), "output.dense"
    parts, proj = (("q_proj", "k_proj", "v_proj"), "o_proj") if is_5 else old
    names = [f"{block}.attention.{part}" for part in parts]
    return (
        *linear("blocks_{n}/attention/qkv", names, "width", "width", optional_bias=True),
        *linear("blocks_{n}/attention/proj", f"{block}.attention.{proj}", "width", "width"),
    )


def _mlp(up: str, down: str) -> tuple[Rule, ...]:
    return (
        *linear("blocks_{n}/mlp/up", up, "hidden", "width"),
        *linear("blocks_{n}/mlp/down", down, "width", "hidden"),
    )


def _embedding(prefix: str) -> tuple[Rule, ...]:
    return embedding(
        patch=f"{prefix}.embeddings.patch_embeddings.projection",
        class_token=f"{prefix}.embeddings.cls_token",
        position=f"{prefix}.embeddings.position_embeddings",
    )


def _vit_layout(project: str, prefix: str, is_5: bool, has_teacher: bool) -> Layout:
    block = f"{prefix}.layers.{{n}}" if is_5 else f"{prefix}.encoder.layer.{{n}}"
    up, down = ("mlp.fc1", "mlp.fc2") if is_5 else ("intermediate.dense", "output.dense")
    heads = linear("head", "classifier", "classes", "width")
    if has_teacher:
        heads = (
            *linear("head", "cls_classifier", "classes", "width"),
            *linear(SECOND_HEAD, "distillation_classifier", "classes", "width"),
        )
    return Layout(
        project=project,
        rules=(
            *_embedding(prefix),
            tokens(f"{prefix}.embeddings.distillation_token"),
            *norm("blocks_{n}/norm1", f"{block}.layernorm_before"),
            *_attention(block, is_5),
            *norm("blocks_{n}/norm2", f"{block}.layernorm_after"),
            *_mlp(f"{block}.{up}", f"{block}.{down}"),
            *norm("norm", f"{prefix}.layernorm"),
            *heads,
        ),
        unused=(f"{prefix}.pooler.dense.weight", f"{prefix}.pooler.dense.bias"),
    )


def _dino_layout(project: str, prefix: str, is_5: bool) -> Layout:
    block = f"{prefix}.encoder.layer.{{n}}"
    return Layout(
        project=project,
        rules=(
            *_embedding(prefix),
            tokens(f"{prefix}.embeddings.register_tokens"),
            *norm("blocks_{n}/norm1", f"{block}.norm1"),
            *_attention(block, is_5),
            Rule("scale1_{n}", (f"{block}.layer_scale1.lambda1",), ("width",)),
            *norm("blocks_{n}/norm2", f"{block}.norm2"),
            *_mlp(f"{block}.mlp.fc1", f"{block}.mlp.fc2"),
            Rule("scale2_{n}", (f"{block}.layer_scale2.lambda1",), ("width",)),
            *norm("norm", f"{prefix}.layernorm"),
            *linear("head", "classifier", "classes", "2 width"),
        ),
        unused=(f"{prefix}.embeddings.mask_token",),
    )


def _tower_layout(project: str, *, has_class: bool) -> Layout:
    """Return the layout of CLIP's and SigLIP's vision towers."""
    own, block = "vision_model.embeddings", "vision_model.encoder.layers.{n}"
    names = [f"{block}.self_attn.{part}_proj" for part in "qkv"]
    last = "vision_model.post_layernorm"
    ends = (
        Rule("embed/class_token", (f"{own}.class_embedding",), ("width",)),
        *norm("embed/norm", "vision_model.pre_layrnorm"),
    )
    pooler = (
        *("probe", "attention.in_proj_weight", "attention.in_proj_bias"),
        *(f"{part}.{kind}" for part in _POOLER for kind in ("weight", "bias")),
    )
    return Layout(
        project=project,
        rules=(
            *embedding(patch=f"{own}.patch_embedding", optional_bias=has_class),
            Rule("embed/position", (f"{own}.position_embedding.weight",), ("tokens", "width")),
            *(ends if has_class else norm("norm", last)),
            *norm("blocks_{n}/norm1", f"{block}.layer_norm1"),
            *linear("blocks_{n}/attention/qkv", names, "width", "width", optional_bias=True),
            *linear("blocks_{n}/attention/proj", f"{block}.self_attn.out_proj", "width", "width"),
            *norm("blocks_{n}/norm2", f"{block}.layer_norm2"),
            *_mlp(f"{block}.mlp.fc1", f"{block}.mlp.fc2"),
            *linear("head", "classifier", "classes", "width"),
        ),
        # the classifier reads tokens before these
        unused=(
            f"{own}.position_ids",
            *(f"vision_model.head.{name}" for name in pooler),
            *((f"{last}.weight", f"{last}.bias") if has_class else ()),
        ),
    )


def _find_size(settings: Mapping[str, Any]) -> int:
    """Return the pixels of an image that the network was made for."""
    size = settings.get("image_size", _IMAGE_SIZE)
    sides = size if isinstance(size, list) else [size]
    if not sides or any(type(side) is not int or side != sides[0] for side in sides):
        raise UnusableError(
            f"takes images of {' x '.join(map(str, sides))} pixels, as image_size in its "
            "config.json says, but only square ones can be read: train it with square images"
        )
    return sides[0]


def _find_eps(settings: Mapping[str, Any], family: _Family) -> float:
    eps = settings.get("layer_norm_eps", family.eps)
    if type(eps) is not float or not math.isfinite(eps):
        raise UnusableError(f"has layer_norm_eps {eps!r}, which must be a number")
    return eps


def _find_activation(settings: Mapping[str, Any], family: _Family) -> Activation:
    name = settings.get("hidden_act", family.activation)
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise UnusableError(
            f"uses hidden_act {name!r}, but only {', '.join(_ACTIVATIONS)} can be read"
        )
    return _ACTIVATIONS[name]
