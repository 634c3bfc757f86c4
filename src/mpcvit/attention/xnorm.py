"""XNorm attention, of UFO-ViT."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mpcvit.artifacts.config import ModelConfig
from mpcvit.attention.kind_math import (
    Context,
    Keys,
    KindMath,
    Outputs,
    Phases,
    Queries,
    Step,
    Values,
)


def cross_normalise(
    x: Float[Array, "*lead row column"], gamma: Float[Array, "... 1 1"], eps: float
) -> Float[Array, "*lead row column"]:
    """Scale every row to length gamma.

        y[i] = gamma x[i] / sqrt(sum_j x[i, j]^2 + eps)

    Range: [-gamma, gamma]. An entry grows with itself (gamma > 0); neither
    sign nor sum is kept. The eps keeps the gradient of a zero row finite.
    Secure cost: a square per entry, rsqrt per row, a product per entry.
    Fixed point: eps >= 2**-fraction_bits, otherwise it may encode to 0.

    >>> y = cross_normalise(jnp.array([[3.0, 4.0]]), jnp.ones((1, 1)), eps=1e-12)
    >>> [round(x, 4) for x in y[0].tolist()]
    [0.6, 0.8]
    """
    return gamma * x * jax.lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + eps)


def xnorm_attention(
    q: Queries, k: Keys, v: Values, gamma: Float[Array, "... 1 1"], eps: float
) -> Outputs:
    """Normalise queries and the key-value product instead of the scores.

        y = xn(q) xn(k' v),  xn as in `cross_normalise`

    Keeps (in the sense of `cross_normalise`): monotonicity.
    Secure cost: linear in the tokens, but two rsqrt, each of many rounds.
    Source: docs/numerics.md#xnorm
    """
    kv = jnp.swapaxes(k, -1, -2) @ v
    return cross_normalise(q, gamma, eps) @ cross_normalise(kv, gamma, eps)


def linear(q: Array, k: Array, v: Array, context: Context) -> Array:
    gamma = context.of_heads("gamma")[:, None, None]
    return xnorm_attention(q, k, v, gamma, context.config.xnorm_eps)


def learn(module: nn.Module, config: ModelConfig, dtype: Any, tokens: int) -> dict[str, Any]:
    gamma = module.param("gamma", nn.initializers.ones, (config.heads,))
    return {"gamma": gamma.astype(dtype)}


def lowered_linear(queries: Array, blocks: Array, context: Context) -> Phases:
    """Yield the phases that give every row of both the length one; gamma is a gain."""
    squares = yield Step("square", [queries, blocks])
    sums = [x.sum(axis=-1) for x in squares]
    inverses = yield Step("inverse_root", sums, sites=("query_length", "product_length"))
    factors = [x[..., None] for x in inverses]
    return (yield Step("multiply", [(queries, factors[0]), (blocks, factors[1])]))


MATH = KindMath(
    linear=linear,
    learn=learn,
    lowered_linear=lowered_linear,
    score_scale=lambda config, tokens: 1.0,
    gain=lambda attention, head: attention["gamma"][head] ** 2,
)
