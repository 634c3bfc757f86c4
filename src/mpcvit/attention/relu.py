"""ReLU attention."""

import jax
import jax.numpy as jnp  # noqa: F401 -- for the example
from jaxtyping import Array

from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights


def relu_weights(scores: Scores) -> Weights:
    """Keep positive scores as they are.

        w[i, j] = relu(s[i, j])

    Range: [0, inf). Keeps: monotonicity, non-negativity.
    Secure cost: one comparison and one product per entry. Training tends to
    diverge, as the weights are unbounded and grow with the number of keys.
    Source: docs/numerics.md#relu

    >>> relu_weights(jnp.array([[3.0, -2.0]])).tolist()
    [[3.0, 0.0]]
    """
    return jax.nn.relu(scores)


def lowered(scores: Array, context: Context) -> Phases:
    (positive,) = yield Step("relu", [scores])
    return positive, None


MATH = KindMath(weights=lambda scores, context: relu_weights(scores), lowered=lowered)
