"""The checkpoints of the paper's authors (github.com/PKU-SEC-Lab/mpcvit).

Facts of their code: normalisation after both sums (`lite`), PyTorch's default
LayerNorm eps, GeLU by erf, and 1e-5 in the denominator of relu_softmax. A layer's
`alpha` says 1 for relu_softmax and 0 for scaling; `beta` says 1 where a token
keeps its GeLU. A file without `alpha` is their softmax teacher.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpcvit.artifacts.architecture import (
    Architecture,
    HeadChoice,
    LayerArchitecture,
    MlpChoice,
    MlpForm,
)
from mpcvit.artifacts.config import BlockForm, ModelConfig
from mpcvit.errors import UserError
from mpcvit.foreign.mapping import Layout, Matched, Rule, embedding, linear, match, nest, norm
from mpcvit.foreign.model import (
    ForeignModel,
    Options,
    Source,
    choose_heads,
    describe_model,
    name_classes,
)
from mpcvit.foreign.preprocessing import Preprocessing, read_normalisation, read_timm
from mpcvit.foreign.unusable import UnusableError
from mpcvit.kinds.table import RELU_SOFTMAX, SCALING, SOFTMAX

_BLOCK = "classifier.blocks.{n}"
_LAYOUT = Layout(
    project="a ViT of the MPCViT authors",
    rules=(
        *embedding(
            patch="tokenizer.conv_layers.0.0",
            class_token="classifier.class_emb",
            position="classifier.positional_emb",
        ),
        *norm("blocks_{n}/norm1", f"{_BLOCK}.pre_norm"),
        *norm("blocks_{n}/norm2", f"{_BLOCK}.norm1"),
        Rule(
            "blocks_{n}/attention/qkv/kernel",
            (f"{_BLOCK}.self_attn.qkv.weight",),
            ("3 width", "width"),
            np.transpose,
        ),
        *linear("blocks_{n}/attention/proj", f"{_BLOCK}.self_attn.proj", "width", "width"),
        *linear("blocks_{n}/mlp/up", f"{_BLOCK}.linear1", "hidden", "width"),
        *linear("blocks_{n}/mlp/down", f"{_BLOCK}.linear2", "width", "hidden"),
        *norm("norm", "classifier.norm"),
        *linear("head", "classifier.fc", "classes", "width"),
        Rule("alpha_{n}", (f"{_BLOCK}.self_attn.alpha",), None, optional=True),
        Rule("beta_{n}", (f"{_BLOCK}.beta",), ("1", "tokens", "1"), np.ravel, optional=True),
    ),
    # Their modules declare these and compute nothing with them.
    unused=(
        f"{_BLOCK}.self_attn.qkv_expand.{{n}}.weight",
        *(f"{_BLOCK}.self_attn.proj_expand.{{n}}.{part}" for part in ("weight", "bias")),
        *(f"{_BLOCK}.self_attn.{name}" for name in ("dw_conv.weight", "W", "kernel_s", "kernel_o")),
        *(f"{_BLOCK}.linear_expand.{{n}}.{part}" for part in ("weight", "bias")),
        *(f"classifier.fc_expand.{{n}}.{part}" for part in ("weight", "bias")),
    ),
)

_MODEL_NAME = re.compile(r"vit_([0-9]{1,2})_[a-z0-9_]{1,40}")
# Heads by the depth in such a name (vit_7_4_32); its second number is the patch size
# in some names and the heads in others.
_HEADS_OF_DEPTH = {2: 2, 4: 2, 6: 4, 7: 4, 9: 12, 12: 12}

# Their dataset configurations, by classes and image size.
_NORMALISATION = {
    (10, 32): ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),  # CIFAR-10
    (100, 32): ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),  # CIFAR-100
    (200, 64): ((0.480, 0.448, 0.397), (0.272, 0.265, 0.274)),  # Tiny-ImageNet
}


def recognises(names: Mapping[str, Any]) -> bool:
    return any(name.startswith(("tokenizer.", "classifier.blocks.")) for name in names)


def convert(source: Source, options: Options) -> ForeignModel:
    if options.image_size is not None:
        raise UserError("--image-size is for models of timm and Hugging Face")
    matched = match(source.tensors, _LAYOUT)
    alphas = _take(matched, "alpha")
    betas = _take(matched, "beta")
    name = _model_name(source)
    heads = choose_heads(
        stated=next((alpha.shape[1] for alpha in alphas if _is_head_wise(alpha)), None),
        usual=_usual_heads(name),
        options=options,
    )
    model = describe_model(
        matched,
        heads=heads,
        block=BlockForm.LITE,
        norm_eps=1e-5,
        attention_eps=1e-5,
    )
    layers = tuple(
        LayerArchitecture(
            heads=_decide_heads(alphas[index], model, index) if alphas else (SOFTMAX,) * heads,
            mlp=_decide_mlp(betas[index], options.relu_after, index)
            if betas
            else MlpForm.ACTIVATED,
        )
        for index in range(model.depth)
    )
    return ForeignModel(
        model=model,
        architecture=Architecture(layers=layers),
        parameters=nest(matched.parameters),
        classes=name_classes(None, model.classes, options=options),
        preprocessing=_find_preprocessing(source, model),
        origin=f"MPCViT authors' {name or 'ViT'}",
    )


def _take(matched: Matched, name: str) -> list[np.ndarray]:
    """Remove what is no parameter of ours, in the order of the blocks."""
    paths = [path for path in matched.parameters if path.startswith(f"{name}_")]
    return [matched.parameters.pop(path) for path in paths]


def _model_name(source: Source) -> str | None:
    for key in ("arch", "model"):
        name = source.arguments.get(key)
        if isinstance(name, str) and _MODEL_NAME.fullmatch(name):
            return name
    return None


def _usual_heads(name: str | None) -> int | None:
    found = _MODEL_NAME.fullmatch(name or "")
    return _HEADS_OF_DEPTH.get(int(found[1])) if found else None


def _is_head_wise(alpha: np.ndarray) -> bool:
    return alpha.size > 1 and alpha.shape == (1, alpha.size, 1, 1)


def _decide_heads(alpha: np.ndarray, model: ModelConfig, layer: int) -> tuple[HeadChoice, ...]:
    """Read one alpha for a layer, one per head, or one per query row for all heads alike."""
    _require_binary(alpha, f"an alpha of layer {layer}")
    kinds = tuple(RELU_SOFTMAX if value else SCALING for value in alpha.ravel())
    if alpha.size == 1:
        return kinds * model.heads
    if alpha.shape == (1, model.heads, 1, 1):
        return kinds
    if alpha.shape == (1, 1, model.tokens, 1):
        return (kinds if len(set(kinds)) > 1 else kinds[0],) * model.heads
    raise UnusableError(
        f"has an alpha of layer {layer} of shape {alpha.shape}, which is neither per layer, nor "
        f"per head ({model.heads}), nor per row ({model.tokens})"
    )


def _decide_mlp(beta: np.ndarray, relu_after: bool, layer: int) -> MlpChoice:
    _require_binary(beta, f"a beta of layer {layer}")
    linearised = MlpForm.LINEAR_RELU if relu_after else MlpForm.LINEAR
    forms = tuple(MlpForm.ACTIVATED if value else linearised for value in beta)
    return forms if len(set(forms)) > 1 else forms[0]


def _require_binary(choices: np.ndarray, what: str) -> None:
    between = choices[(choices != 0) & (choices != 1)]
    if between.size:
        raise UnusableError(
            f"has {what} that is {between[0]:.4g}, neither 0 nor 1: this file is a search, not its "
            "result; use the checkpoint that was retrained after it"
        )


def _find_preprocessing(source: Source, model: ModelConfig) -> Preprocessing:
    """Return what the training script recorded, else the constants of the data set.

    They evaluate on whole images of known data, whatever crop their configurations name.
    """
    arguments = source.arguments
    constants = _NORMALISATION.get((model.classes, model.image_size))
    recorded = {name: arguments.get(name) for name in ("mean", "std", "crop_pct", "interpolation")}
    if constants is not None:
        recorded["crop_pct"] = 1.0
        if read_normalisation(recorded["mean"], recorded["std"], model.channels)[0] is None:
            recorded["mean"], recorded["std"] = constants
    return read_timm(recorded, image_size=model.image_size, channels=model.channels)
