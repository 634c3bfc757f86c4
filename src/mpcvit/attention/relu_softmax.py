"""ReLU softmax attention (RSAttn)."""

import jax
import jax.numpy as jnp  # noqa: F401 -- for the example
from jaxtyping import Array

from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights


def relu_softmax_weights(scores: Scores, eps: float) -> Weights:
    """Turn scores into attention weights without exp.

        w[i, j] = relu(s[i, j]) / (sum_k relu(s[i, k]) + eps)

    Range: [0, 1]; with eps > 0, a row without positive scores becomes zeros.
    Keeps: monotonicity, non-negativity, normalisation (of rows with a positive
    score, up to eps).
    Secure cost: a comparison and two products per entry, a reciprocal per row;
    no max, no exp.
    Fixed point: eps >= 2**-fraction_bits, otherwise it may encode to 0.
    Source: docs/numerics.md#relu-softmax

    >>> relu_softmax_weights(jnp.array([[3.0, 1.0, -2.0]]), eps=0.0).tolist()
    [[0.75, 0.25, 0.0]]
    """
    positive = jax.nn.relu(scores)
    return positive / (positive.sum(axis=-1, keepdims=True) + eps)


def lowered(scores: Array, context: Context) -> Phases:
    (positive,) = yield Step("relu", [scores])
    (inverses,) = yield Step("denominator", [positive.sum(axis=-1)])
    return positive, inverses


MATH = KindMath(
    weights=lambda scores, context: relu_softmax_weights(scores, context.config.attention_eps),
    lowered=lowered,
)
