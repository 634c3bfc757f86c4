"""Exact rewrites of weights: everything that is linear and known goes into its neighbour.

Gains and biases of norms, 1 / sqrt(head_dim) and 1 / n move into the linears that
read them. What only norms read is centred where it is written, by
`C = I - 11'/width` on the writers' columns: then a norm finds the mean to be zero
and needs none. All of it in float64.
"""

from typing import Any

import numpy as np

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import BlockForm, ModelConfig, NormForm, Pooling
from mpcvit.artifacts.resolve import require_plain
from mpcvit.attention.kind_math import math_of
from mpcvit.lowering.heads import folded_scale, kinds_of
from mpcvit.model.checkpoint import Parameters

Weights = dict[str, Any]
_LEAST_GAIN = 1e-4  # of a kind, in a head that has rows of other kinds too


def fold(config: ModelConfig, architecture: Architecture, parameters: Parameters) -> Weights:
    """Return the weights of a lowered network, by stage."""
    require_plain(config, architecture, "lowering")
    exact, centring = _float64(parameters), _centring(config)
    weights: Weights = {"embed": _embed(config, exact["embed"], centring)}
    for index, layer in enumerate(architecture.layers):
        own = exact[f"blocks_{index}"]
        weights[f"blocks_{index}"] = {
            **_attention(config, layer, own, centring),
            "mlp": _mlp(config, layer, own, centring),
        }
    weights["head"] = _after_norm(exact["norm"], exact["head"]["kernel"], exact["head"]["bias"])
    return _float32(weights)


def mlp_forms(layer: LayerArchitecture) -> frozenset[MlpForm]:
    """Return the distinct functions of an MLP."""
    forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,)
    return frozenset(lowered_form(form) for form in forms)


def lowered_form(form: MlpForm) -> MlpForm:
    """Return the form that computes the same with two linears in a row fused.

    >>> lowered_form(MlpForm.LINEAR)
    <MlpForm.FUSED: 'fused'>
    """
    match form:
        case MlpForm.LINEAR | MlpForm.FUSED:
            return MlpForm.FUSED
        case MlpForm.LINEAR_RELU:
            return MlpForm.FUSED_RELU
        case _:
            return form


def is_centred(config: ModelConfig) -> bool:
    """Whether tokens are written with a mean of zero; linear norms keep the mean."""
    return config.norm is not NormForm.LINEAR


def _centring(config: ModelConfig) -> np.ndarray:
    """C, or nothing where norms see to the mean."""
    identity = np.eye(config.width)
    return identity - 1 / config.width if is_centred(config) else identity


def _embed(config: ModelConfig, own: Any, centring: np.ndarray) -> Weights:
    offset = own["position"].copy()
    first = 0
    if config.pooling is Pooling.CLASS:
        offset[0] += own["class_token"]
        first = 1
    offset[first:] += own["patch"]["bias"]
    return {"kernel": own["patch"]["kernel"] @ centring, "offset": offset @ centring}


def _after_norm(norm: Any, kernel: np.ndarray, bias: np.ndarray | float) -> Weights:
    """Fold a norm's gain and bias into the linear that reads it."""
    return {"kernel": norm["scale"][:, None] * kernel, "bias": norm["bias"] @ kernel + bias}


def _attention(
    config: ModelConfig, layer: LayerArchitecture, own: Any, centring: np.ndarray
) -> dict[str, Weights]:
    """Move gains of kinds, and every constant factor of scores, into the weights around.

    A kind with a gain does not see the scale of v. So if a head has rows of other
    kinds too, its values are divided by what its outputs are multiplied by.
    """
    head_dim, attention = config.head_dim, own["attention"]
    scale = np.array([folded_scale(config, choice) for choice in layer.heads])
    gain, share = np.ones(config.heads), np.ones(config.heads)
    for head, kinds in enumerate(map(kinds_of, layer.heads)):
        gains = [gain_of for kind in kinds if (gain_of := math_of(kind).gain) is not None]
        assert len(gains) <= 1, "two kinds of a head want to scale its values"
        if gains:
            gain[head] = gains[0](attention, head)
            if len(kinds) > 1:
                gain[head] = max(gain[head], _LEAST_GAIN)
                share[head] = 1 / gain[head]
    factors = np.repeat(np.concatenate([scale, np.ones(config.heads), share]), head_dim)
    qkv, proj = attention["qkv"], attention["proj"]
    folded = _after_norm(own["norm1"], qkv["kernel"], qkv.get("bias", 0.0))
    weights = {
        "qkv": {name: value * factors for name, value in folded.items()},
        "proj": {
            "kernel": np.repeat(gain, head_dim)[:, None] * proj["kernel"] @ centring,
            "bias": proj["bias"] @ centring,
        },
    }
    if learned := _learned(config, layer, attention):
        weights["learned"] = learned
    return weights


def _learned(config: ModelConfig, layer: LayerArchitecture, attention: Any) -> Weights:
    """Return the parameters that kinds learn, as their lowered forms read them."""
    learned: Weights = {}
    for kind in sorted(layer.kinds, key=str):
        if (own := math_of(kind).fold) is not None:
            learned |= own(config, attention)
    return learned


def _mlp(
    config: ModelConfig, layer: LayerArchitecture, own: Any, centring: np.ndarray
) -> dict[str, Weights]:
    """Of the lite form the norm's output is residual too: its gain is multiplied with.

    A product of matrices could do that on its way, but would take longer.
    """
    up, down, norm = own["mlp"]["up"], own["mlp"]["down"], own["norm2"]
    lite = config.block is BlockForm.LITE
    gain, shift = np.diag(norm["scale"]), norm["bias"]
    weights: dict[str, Weights] = {}
    for form in mlp_forms(layer):
        if form is MlpForm.ACTIVATED:
            weights["up"] = _after_norm(norm, up["kernel"], up["bias"])
            bias = down["bias"] + (shift if lite else 0.0)
            weights["down"] = {"kernel": down["kernel"] @ centring, "bias": bias @ centring}
            if lite:
                weights["residual"] = {"gain": norm["scale"]}
            continue
        kernel = up["kernel"] @ down["kernel"]
        fused = _after_norm(norm, kernel, up["bias"] @ down["kernel"] + down["bias"])
        if form is MlpForm.FUSED:
            if lite:
                fused = {"kernel": fused["kernel"] + gain, "bias": fused["bias"] + shift}
            fused = {name: value @ centring for name, value in fused.items()}
        elif lite:
            fused = {
                "kernel": np.concatenate([fused["kernel"], gain @ centring], axis=1),
                "bias": np.concatenate([fused["bias"], shift @ centring]),
            }
        weights[form.value] = fused
    return weights


def _float64(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _float64(branch) for name, branch in tree.items()}
    return np.asarray(tree, np.float64)


def _float32(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _float32(branch) for name, branch in tree.items()}
    return np.ascontiguousarray(tree, np.float32)
