"""ReLU6 attention."""

import jax
import jax.numpy as jnp  # noqa: F401 -- for the example
from jaxtyping import Array

from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights


def relu6_weights(scores: Scores) -> Weights:
    """Keep positive scores up to six.

        w[i, j] = min(relu(s[i, j]), 6)

    Range: [0, 6]. Keeps: monotonicity, non-negativity.
    Secure cost: two comparisons and two products per entry.
    Source: docs/numerics.md#relu6

    >>> relu6_weights(jnp.array([[3.0, -2.0, 9.0]])).tolist()
    [[3.0, 0.0, 6.0]]
    """
    return jax.nn.relu6(scores)


def lowered(scores: Array, context: Context) -> Phases:
    """Yield both ramps at once: relu(s) - relu(s - 6)."""
    rising, falling = yield Step("relu", [scores, scores - 6.0])
    return rising - falling, None


MATH = KindMath(weights=lambda scores, context: relu6_weights(scores), lowered=lowered)
