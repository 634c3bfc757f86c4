"""Square attention."""

import jax.numpy as jnp
from jaxtyping import Array

from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights


def square_weights(scores: Scores) -> Weights:
    """Square each score.

        w[i, j] = s[i, j]^2

    Range: [0, inf). Keeps: non-negativity.
    Secure cost: one square per entry.
    Source: docs/numerics.md#square

    >>> square_weights(jnp.array([[3.0, -2.0]])).tolist()
    [[9.0, 4.0]]
    """
    return jnp.square(scores)


def lowered(scores: Array, context: Context) -> Phases:
    (weights,) = yield Step("square", [scores])
    return weights, None


MATH = KindMath(weights=lambda scores, context: square_weights(scores), lowered=lowered)
