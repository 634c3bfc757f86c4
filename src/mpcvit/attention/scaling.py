"""Scaling attention (ScaleAttn)."""

import math

import jax.numpy as jnp
from jaxtyping import Array

from mpcvit.attention.kind_math import (
    Context,
    Keys,
    KindMath,
    Outputs,
    Phases,
    Queries,
    Scores,
    Values,
    Weights,
    usual_scale,
)


def scaling_weights(scores: Scores) -> Weights:
    """Divide by the number of keys, and nothing else.

        w[i, j] = s[i, j] / n

    Range: unbounded. Keeps: monotonicity.
    Secure cost: none beyond the products around it; 1/n folds into weights.
    Source: docs/numerics.md#scaling

    >>> scaling_weights(jnp.array([[3.0, -1.0]])).tolist()
    [[1.5, -0.5]]
    """
    return scores / scores.shape[-1]


def scaling_attention(q: Queries, k: Keys, v: Values) -> Outputs:
    """Return scaling attention in its linear order.

        y = (q / sqrt(n head_dim)) ((k / sqrt(n))' v)

    Equals `scaling_weights(scores) @ v`, with no score ever formed: work grows
    with n rather than n^2.
    Secure cost: two small products of matrices, no comparison.
    Source: docs/numerics.md#scaling
    """
    tokens, head_dim = k.shape[-2:]
    return (q / math.sqrt(tokens * head_dim)) @ (jnp.swapaxes(k / math.sqrt(tokens), -1, -2) @ v)


def lowered(scores: Array, context: Context) -> Phases:
    yield from ()
    return scores, None


def lowered_linear(queries: Array, blocks: Array, context: Context) -> Phases:
    yield from ()
    return queries, blocks


MATH = KindMath(
    weights=lambda scores, context: scaling_weights(scores),
    linear=lambda q, k, v, context: scaling_attention(q, k, v),
    lowered=lowered,
    lowered_linear=lowered_linear,
    score_scale=lambda config, tokens: usual_scale(config) / tokens,
)
