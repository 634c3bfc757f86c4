"""The lowered network: embedding, blocks and head as functions of folded weights.

Written for few exchanges, and for nothing else: these very functions are
compiled for SPU, calibrated, and run as the plaintext emulation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import Activation, BlockForm, ModelConfig, Pooling
from mpcvit.artifacts.resolve import forms_of, is_centred, queries_of
from mpcvit.attention.kind_math import gather, merge
from mpcvit.lowering.attention import AttentionLayer
from mpcvit.lowering.fold import Weights
from mpcvit.lowering.sites import EMBED_NORM, HEAD_NORM, Function, Functions, layer_functions
from mpcvit.model.vit import merge_to, pool


def embed(
    config: ModelConfig,
    architecture: Architecture,
    functions: Functions,
    weights: Weights,
    images: Array,
) -> Array:
    """Turn images into tokens, beside them what the first block makes of them if that is merged."""
    side, patch, batch = config.image_size // config.patch_size, config.patch_size, images.shape[0]
    patches = images.reshape(batch, side, patch, side, patch, config.channels)
    patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch * side * side, -1)
    x = (patches @ weights["kernel"]).reshape(batch, side * side, -1)
    if leading := config.leading_tokens:
        x = jnp.concatenate([jnp.zeros((batch, leading, x.shape[-1]), x.dtype), x], axis=1)
    x = x + weights["offset"][None]
    if not config.embed_norm:
        return x
    centred = is_centred(config, architecture)
    x = _normalise(x, functions[EMBED_NORM], centred) * weights["gain"]
    return (_centred(x) if centred else x) + weights["bias"]


def block(
    config: ModelConfig,
    architecture: Architecture,
    index: int,
    functions: Functions,
    weights: Weights,
    x: Array,
) -> Array:
    """Compute one block. Tokens that nothing reads later are left out."""
    layer, queries = architecture.layers[index], queries_of(config, architecture, index)
    form, known = forms_of(config, architecture)[index], layer_functions(functions, index)
    centred, narrow = is_centred(config, architecture), config.heads * config.qk_dim
    x = merge_to(config, x, form.tokens)
    if "qkv" in weights:
        u = _normalise(x, known.get("norm1"), centred, weights.get("norm1"), config.clip)
        qkv = _linear(u, weights["qkv"])
    else:  # what wrote the tokens has computed it beside them
        x, qkv = _split(x, config.width)
    q, k, v = jnp.split(qkv, (narrow, 2 * narrow), axis=-1)
    attend = AttentionLayer(
        config=config,
        heads=layer.heads,
        tokens=form.tokens,
        functions=known,
        learned=weights.get("learned", {}),
    )
    x, written, hidden = x[:, :queries], attend(q[:, :queries], k, v), None
    if _reads_beside(weights["proj"], written):
        both = _linear(jnp.concatenate([x, written], axis=-1), weights["proj"])
        x, hidden = _split(both, config.width)
    else:
        x = x + _linear(written, weights["proj"])
    u = _normalise(x, known.get("norm2"), centred, weights.get("norm2"), config.clip)
    mlp_forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,) * queries
    tokens_of: dict[MlpForm, list[int]] = {}
    for token, mlp_form in enumerate(mlp_forms[:queries]):
        tokens_of.setdefault(mlp_form.with_fused_linears, []).append(token)
    parts = [
        _mlp(
            config,
            mlp_form,
            partial(_activate, form.activation, known.get("activation")),
            weights.get("mlp", {}),  # its linears may both be in others
            gather(u, tokens, axis=1),
            gather(x, tokens, axis=1),
            hidden,
            centred=centred,
        )
        for mlp_form, tokens in tokens_of.items()
    ]
    return merge(parts, list(tokens_of.values()), axis=1)


def head(
    config: ModelConfig,
    architecture: Architecture,
    functions: Functions,
    weights: Weights,
    x: Array,
) -> Array:
    """Return the logits of the last block's tokens."""
    normalise = partial(
        _normalise,
        inverse_root=functions.get(HEAD_NORM),
        centred=is_centred(config, architecture),
        clipped=weights.get("norm"),
        bound=config.clip,
    )
    if config.pooling is Pooling.CLASS:
        pooled = normalise(x[:, :1]).mean(axis=1)
    else:
        pooled = normalise(pool(config, x)) if config.pooled_norm else pool(config, normalise(x))
    return pooled @ weights["kernel"] + weights["bias"]


@dataclass(frozen=True, kw_only=True)
class NetworkPart:
    """The embedding, a block or the head."""

    name: str
    weights: str  # where its weights are
    function: Callable[[Weights, Array], Array]


def network_parts(
    config: ModelConfig, architecture: Architecture, functions: Functions
) -> list[NetworkPart]:
    """Return the parts of a network, in the order in which they run."""
    common = (config, architecture)
    blocks = [
        NetworkPart(
            name=f"block {index}",
            weights=f"blocks_{index}",
            function=partial(block, *common, index, functions),
        )
        for index in range(config.depth)
    ]
    return [
        NetworkPart(
            name="the embedding", weights="embed", function=partial(embed, *common, functions)
        ),
        *blocks,
        NetworkPart(name="the head", weights="head", function=partial(head, *common, functions)),
    ]


def forward(
    config: ModelConfig,
    architecture: Architecture,
    functions: Functions,
    weights: Weights,
    images: Array,
) -> Array:
    """Compute the whole network on a batch of normalised images."""
    x = images
    for part in network_parts(config, architecture, functions):
        x = part.function(weights[part.weights], x)
    return x


def _linear(x: Array, weights: Weights) -> Array:
    rows = x.reshape(-1, x.shape[-1]) @ weights["kernel"] + weights["bias"]
    return rows.reshape(*x.shape[:-1], -1)


def _reads_beside(weights: Weights, x: Array) -> bool:
    """Return whether a linear reads the residual beside `x`, as merged ones do."""
    return weights["kernel"].shape[0] > x.shape[-1]


def _split(x: Array, columns: int) -> tuple[Array, Array]:
    """Return the first columns, and the others."""
    return x[..., :columns], x[..., columns:]


def _centred(x: Array) -> Array:
    return x - x.sum(axis=-1, keepdims=True) * (1 / x.shape[-1])


def _normalise(
    x: Array,
    inverse_root: Function | None,
    centred: bool,
    clipped: Weights | None = None,
    bound: float = 0.0,
) -> Array:
    """Divide tokens by their deviation. Gain and bias are in the next linear.

    A norm without a function is all gain and bias, which it applies itself if it clips.
    """
    if clipped is not None:
        return _clip(x * clipped["gain"] + clipped["bias"], bound)
    if inverse_root is None:
        return x
    x = x if centred else _centred(x)
    return x * inverse_root((x * x).sum(axis=-1) * (1 / x.shape[-1]))[..., None]


def _clip(x: Array, bound: float) -> Array:
    """Return values within [-bound, bound], by both ramps in one comparison."""
    above, beyond = jnp.split(jax.nn.relu(jnp.concatenate([x + bound, x - bound])), 2)
    return above - beyond - bound


def _mlp(
    config: ModelConfig,
    form: MlpForm,
    activate: Function,
    weights: Weights,
    u: Array,
    x: Array,
    hidden: Array | None,
    *,
    centred: bool,
) -> Array:
    """Return the block's output for tokens of one form; `u` is the norm of `x`.

    `hidden` is what the first linear gives, if that is known already.
    """
    lite = config.block is BlockForm.LITE
    if form is MlpForm.ACTIVATED:
        rest, hidden = x, _linear(u, weights["up"]) if hidden is None else hidden
        if lite:
            rest = u * weights["residual"]["gain"] if "residual" in weights else u
            rest = _centred(rest) if centred else rest
        if hidden.shape[-1] > config.hidden:
            hidden, straight = _split(hidden, config.hidden)
            rest = rest + straight
        hidden = activate(hidden)
        if "down" in weights and not _reads_beside(weights["down"], hidden):
            return rest + _linear(hidden, weights["down"])
        both = jnp.concatenate([rest, hidden], axis=-1)
        return _linear(both, weights["down"]) if "down" in weights else both  # for the head
    y = _linear(u, weights[form.value])
    if form is MlpForm.FUSED:
        return y if lite else x + y
    branch = jax.nn.relu(y[..., : config.width])
    if centred:
        branch = _centred(branch)
    return branch + (y[..., config.width :] if lite else x)


def _activate(kind: Activation, approximation: Function | None, x: Array) -> Array:
    if kind is Activation.RELU:
        return jax.nn.relu(x)
    if kind is Activation.QUAD:
        return x * x * np.float32(0.125) + x * np.float32(0.25) + np.float32(0.5)
    if kind is Activation.QUADRATIC:  # its coefficients are in the weights around it
        return x * x
    assert approximation is not None
    return approximation(x)
