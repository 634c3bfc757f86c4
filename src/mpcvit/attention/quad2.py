"""2Quad attention, of MPCFormer."""

import jax.numpy as jnp
from jaxtyping import Array

from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights


def quad2_weights(scores: Scores, offset: float, eps: float) -> Weights:
    """Replace softmax's exp by a parabola.

        w[i, j] = (s[i, j] + c)^2 / (sum_k (s[i, k] + c)^2 + eps)

    Range: [0, 1]. Keeps: non-negativity, normalisation.
    Secure cost: a square per entry, a reciprocal per row, a product per entry.
    Fixed point: a row of scores near -c has a denominator near eps, and eps
    encodes to 0 below 2**-fraction_bits.
    Source: docs/numerics.md#quad2

    >>> quad2_weights(jnp.array([[1.0, -1.0, 0.0, -2.0]]), offset=0.0, eps=2.0).tolist()
    [[0.125, 0.125, 0.0, 0.5]]
    """
    squares = jnp.square(scores + offset)
    return squares / (squares.sum(axis=-1, keepdims=True) + eps)


def lowered(scores: Array, context: Context) -> Phases:
    (squares,) = yield Step("square", [scores + context.config.quad2_offset])
    (inverses,) = yield Step("denominator", [squares.sum(axis=-1)])
    return squares, inverses


MATH = KindMath(
    weights=lambda scores, context: quad2_weights(
        scores, context.config.quad2_offset, context.config.attention_eps
    ),
    lowered=lowered,
)
