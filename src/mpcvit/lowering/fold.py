"""Exact rewrites of weights: everything that is linear and known goes into its neighbour.

Gains and biases of norms, 1 / sqrt(head_dim) and 1 / n move into the linears that
read them. What only norms read is centred where it is written, by
`C = I - 11'/width` on the writers' columns: then a norm finds the mean to be zero
and needs none. Heads are put in the order of their kinds. All of it in float64.
"""

import math
from typing import Any

import jax
import numpy as np

from mpcvit.arch import Architecture, AttentionKind, LayerArchitecture, MlpForm
from mpcvit.checkpoint import Parameters
from mpcvit.config import BlockForm, ModelConfig, NormForm, Pooling
from mpcvit.lowering.heads import order_heads
from mpcvit.model.vit import init_parameters

Weights = dict[str, Any]


def fold(config: ModelConfig, architecture: Architecture, parameters: Parameters) -> Weights:
    """The weights of a lowered network, by stage."""
    exact = _float64(parameters)
    centring = _centring(config)
    weights: Weights = {"embed": _embed(config, exact["embed"], centring)}
    for index, layer in enumerate(architecture.layers):
        own = exact[f"blocks_{index}"]
        weights[f"blocks_{index}"] = {
            **_attention(config, layer, own, centring),
            "mlp": _mlp(config, layer, own, centring),
        }
    weights["head"] = _after_norm(exact["norm"], exact["head"]["kernel"], exact["head"]["bias"])
    return _float32(weights)


def weight_shapes(config: ModelConfig, architecture: Architecture) -> Weights:
    """The tree that `fold` gives, of zeros: shapes are public."""
    shapes = jax.eval_shape(lambda: init_parameters(config, architecture, seed=0))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    return fold(config, architecture, zeros)


def mlp_forms(layer: LayerArchitecture) -> frozenset[MlpForm]:
    """The distinct functions of an MLP: two linears in a row are always fused."""
    forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,)
    return frozenset(lowered_form(form) for form in forms)


def lowered_form(form: MlpForm) -> MlpForm:
    """
    >>> lowered_form(MlpForm.LINEAR)
    <MlpForm.FUSED: 'fused'>
    """
    return {MlpForm.LINEAR: MlpForm.FUSED, MlpForm.LINEAR_RELU: MlpForm.FUSED_RELU}.get(form, form)


def _centring(config: ModelConfig) -> np.ndarray:
    """C, or nothing where norms keep the mean."""
    identity = np.eye(config.width)
    return identity if config.norm is NormForm.LINEAR else identity - 1 / config.width


def _embed(config: ModelConfig, own: Any, centring: np.ndarray) -> Weights:
    offset = own["position"].copy()
    first = 0
    if config.pooling is Pooling.CLASS:
        offset[0] += own["class_token"]
        first = 1
    offset[first:] += own["patch"]["bias"]
    return {"kernel": own["patch"]["kernel"] @ centring, "offset": offset @ centring}


def _after_norm(norm: Any, kernel: np.ndarray, bias: np.ndarray | float) -> Weights:
    """The linear that reads a norm, with the norm's gain and bias in it."""
    return {"kernel": norm["scale"][:, None] * kernel, "bias": norm["bias"] @ kernel + bias}


def _attention(
    config: ModelConfig, layer: LayerArchitecture, own: Any, centring: np.ndarray
) -> dict[str, Weights]:
    width, head_dim = config.width, config.head_dim
    qkv = own["attention"]["qkv"]
    order = order_heads(layer.heads)
    columns = np.concatenate([head * head_dim + np.arange(head_dim) for head in order.heads])
    scale = np.repeat([_score_scale(config, kind) for kind in order.kinds], head_dim)
    three = np.concatenate([part * width + columns for part in range(3)])
    factors = np.concatenate([scale, np.ones(2 * width)])
    folded = _after_norm(own["norm1"], qkv["kernel"], qkv.get("bias", 0.0))
    proj = own["attention"]["proj"]
    return {
        "qkv": {
            "kernel": folded["kernel"][:, three] * factors,
            "bias": folded["bias"][three] * factors,
        },
        "proj": {"kernel": proj["kernel"][columns] @ centring, "bias": proj["bias"] @ centring},
    }


def _score_scale(config: ModelConfig, kind: AttentionKind) -> float:
    scale = 1 / math.sqrt(config.head_dim)
    return scale / config.tokens if kind is AttentionKind.SCALING else scale


def _mlp(
    config: ModelConfig, layer: LayerArchitecture, own: Any, centring: np.ndarray
) -> dict[str, Weights]:
    """Of the lite form the norm's output is residual too, and its gain joins the product."""
    up, down, norm = own["mlp"]["up"], own["mlp"]["down"], own["norm2"]
    lite = config.block is BlockForm.LITE
    gain, shift = np.diag(norm["scale"]), norm["bias"]
    weights: dict[str, Weights] = {}
    for form in mlp_forms(layer):
        if form is MlpForm.ACTIVATED:
            weights["up"] = _after_norm(norm, up["kernel"], up["bias"])
            kernel = np.concatenate([gain, down["kernel"]]) if lite else down["kernel"]
            bias = down["bias"] + (shift if lite else 0.0)
            weights["down"] = {"kernel": kernel @ centring, "bias": bias @ centring}
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
