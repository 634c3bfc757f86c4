"""The lowered network: embedding, blocks and head as functions of folded weights.

Written for few exchanges, and for nothing else: these very functions are
compiled for SPU, calibrated, and run as the plaintext emulation.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import Activation, BlockForm, ModelConfig, Pooling
from mpcvit.lowering.attention import AttentionLayer
from mpcvit.lowering.fold import Weights, is_centred, lowered_form
from mpcvit.lowering.heads import queries_of
from mpcvit.lowering.sites import HEAD_NORM, Function, Functions, layer_functions
from mpcvit.model.gather import gather, merge


def embed(config: ModelConfig, weights: Weights, images: Array) -> Array:
    """Turn images into centred tokens."""
    side, patch, batch = config.image_size // config.patch_size, config.patch_size, images.shape[0]
    patches = images.reshape(batch, side, patch, side, patch, config.channels)
    patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch * side * side, -1)
    x = (patches @ weights["kernel"]).reshape(batch, side * side, config.width)
    if config.pooling is Pooling.CLASS:
        x = jnp.concatenate([jnp.zeros_like(x[:, :1]), x], axis=1)
    return x + weights["offset"][None]


def block(
    config: ModelConfig,
    architecture: Architecture,
    index: int,
    functions: Functions,
    weights: Weights,
    x: Array,
) -> Array:
    """Compute one block on centred tokens. Tokens that nothing reads later are left out."""
    layer, queries = architecture.layers[index], queries_of(config, index)
    known = layer_functions(functions, index)
    u = _normalise(x, known.get("norm1"))
    q, k, v = jnp.split(_linear(u, weights["qkv"]), 3, axis=-1)
    attend = AttentionLayer(
        config=config,
        heads=layer.heads,
        functions=known,
        learned=weights.get("learned", {}),
    )
    x = x[:, :queries] + _linear(attend(q[:, :queries], k, v), weights["proj"])
    u = _normalise(x, known.get("norm2"))
    forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,) * config.tokens
    tokens_of: dict[MlpForm, list[int]] = {}
    for token, form in enumerate(forms[:queries]):
        tokens_of.setdefault(lowered_form(form), []).append(token)
    parts = [
        _mlp(
            config,
            form,
            known.get("activation"),
            weights["mlp"],
            gather(u, tokens, axis=1),
            gather(x, tokens, axis=1),
        )
        for form, tokens in tokens_of.items()
    ]
    return merge(parts, list(tokens_of.values()), axis=1)


def head(config: ModelConfig, functions: Functions, weights: Weights, x: Array) -> Array:
    """Return the logits of the last block's tokens."""
    x = x[:, :1] if config.pooling is Pooling.CLASS else x
    u = _normalise(x, functions.get(HEAD_NORM))
    return u.mean(axis=1) @ weights["kernel"] + weights["bias"]


def forward(
    config: ModelConfig,
    architecture: Architecture,
    functions: Functions,
    weights: Weights,
    images: Array,
) -> Array:
    """Compute the whole network on a batch of normalised images."""
    x = embed(config, weights["embed"], images)
    for index in range(config.depth):
        x = block(config, architecture, index, functions, weights[f"blocks_{index}"], x)
    return head(config, functions, weights["head"], x)


def _linear(x: Array, weights: Weights) -> Array:
    rows = x.reshape(-1, x.shape[-1]) @ weights["kernel"] + weights["bias"]
    return rows.reshape(*x.shape[:-1], -1)


def _centred(x: Array) -> Array:
    return x - x.sum(axis=-1, keepdims=True) * (1 / x.shape[-1])


def _normalise(x: Array, inverse_root: Function | None) -> Array:
    """Divide centred tokens by their deviation. Gain and bias are in the next linear."""
    if inverse_root is None:
        return x
    return x * inverse_root((x * x).sum(axis=-1) * (1 / x.shape[-1]))[..., None]


def _mlp(
    config: ModelConfig,
    form: MlpForm,
    activation: Function | None,
    weights: Weights,
    u: Array,
    x: Array,
) -> Array:
    """Return the block's output for tokens of one form; `u` is the norm of `x`."""
    lite = config.block is BlockForm.LITE
    if form is MlpForm.ACTIVATED:
        hidden = _activate(config.activation, activation, _linear(u, weights["up"]))
        written = _linear(hidden, weights["down"])
        if not lite:
            return x + written
        rest = u * weights["residual"]["gain"]
        return written + (_centred(rest) if is_centred(config) else rest)
    y = _linear(u, weights[form.value])
    if form is MlpForm.FUSED:
        return y if lite else x + y
    branch = jax.nn.relu(y[..., : config.width])
    if is_centred(config):
        branch = _centred(branch)
    return branch + (y[..., config.width :] if lite else x)


def _activate(kind: Activation, approximation: Function | None, x: Array) -> Array:
    if kind is Activation.RELU:
        return jax.nn.relu(x)
    if kind is Activation.QUAD:
        return x * x * np.float32(0.125) + x * np.float32(0.25) + np.float32(0.5)
    assert approximation is not None
    return approximation(x)
