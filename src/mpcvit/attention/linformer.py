"""Linformer: softmax attention on fewer keys and values."""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mpcvit.artifacts.config import ModelConfig
from mpcvit.attention import softmax
from mpcvit.attention.kind_math import Context

_NAMES = ("key_projection", "value_projection")


def keys_and_values(k: Array, v: Array, context: Context) -> tuple[Array, Array]:
    """Compress keys and values over tokens.

        k -> E k,  v -> F v,  with learnt E, F [compressed, key] that all heads share

    Keeps: what softmax keeps, over the compressed keys.
    Secure cost: two products of matrices; then softmax over fewer keys.
    Source: docs/numerics.md#linformer
    """
    return context.learned[_NAMES[0]] @ k, context.learned[_NAMES[1]] @ v


def learn(module: nn.Module, config: ModelConfig, dtype: Any, tokens: int) -> dict[str, Any]:
    shape, init = (config.linformer_tokens(tokens), tokens), nn.initializers.xavier_uniform()
    return {name: module.param(name, init, shape).astype(dtype) for name in _NAMES}


def fold(config: ModelConfig, attention: Any, tokens: int) -> dict[str, Any]:
    """Return both projections in one array."""
    return {"projection": np.concatenate([attention[name] for name in _NAMES])}


def lowered_keys_and_values(k: Array, v: Array, context: Context) -> tuple[Array, Array]:
    """Return E k and F v of all heads and images, from one product with [E; F]."""
    projection, both = context.learned["projection"], jnp.concatenate([k, v], axis=-1)
    batch, tokens, width = both.shape
    count = projection.shape[0] // 2
    projected = projection @ both.transpose(1, 0, 2).reshape(tokens, -1)
    projected = projected.reshape(2 * count, batch, width).transpose(1, 0, 2)
    return projected[:, :count, : k.shape[-1]], projected[:, count:, k.shape[-1] :]


MATH = replace(
    softmax.MATH,
    keys_and_values=keys_and_values,
    learn=learn,
    fold=fold,
    lowered_keys_and_values=lowered_keys_and_values,
)
