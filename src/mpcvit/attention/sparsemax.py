"""Sparsemax attention, in its elementwise form."""

import jax.numpy as jnp
from jaxtyping import Array

from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights, usual_scale


def sparsemax_weights(scores: Scores) -> Weights:
    """Return a ramp from zero to one between scores of -1 and 1.

        w[i, j] = clip((s[i, j] + 1) / 2, 0, 1)

    This is the elementwise form that the paper prints and benchmarks: the exact
    sparsemax of the pair (s, 0) at twice the slope. Sparsemax proper projects a
    whole row onto the simplex, which sorts the row and sums to one; this form
    looks at each score alone and does not.
    Range: [0, 1]. Keeps: monotonicity, non-negativity.
    Secure cost: two comparisons and two products per entry.
    Source: docs/numerics.md#sparsemax

    >>> sparsemax_weights(jnp.array([[-3.0, 0.0, 0.5, 2.0]])).tolist()
    [[0.0, 0.5, 0.75, 1.0]]
    """
    return jnp.clip((scores + 1) / 2, 0, 1)


def lowered(scores: Array, context: Context) -> Phases:
    """Yield both ramps at once: relu(s + 1/2) - relu(s - 1/2), at half the scores' scale."""
    rising, falling = yield Step("relu", [scores + 0.5, scores - 0.5])
    return rising - falling, None


MATH = KindMath(
    weights=lambda scores, context: sparsemax_weights(scores),
    lowered=lowered,
    score_scale=lambda config, tokens: usual_scale(config) / 2,
)
