"""ReLU attention divided by the number of keys."""

import jax
import jax.numpy as jnp  # noqa: F401 -- for the example

from mpcvit.attention import relu
from mpcvit.attention.kind_math import KindMath, Scores, Weights, usual_scale


def relu_by_keys_weights(scores: Scores) -> Weights:
    """Keep positive scores, divided by the number of keys.

        w[i, j] = relu(s[i, j]) / n

    Range: [0, inf). Keeps: monotonicity, non-negativity.
    Secure cost: one comparison and one product per entry; 1/n folds into weights.
    Origin: Wortsman et al. 2023, "Replacing softmax with ReLU in Vision Transformers".
    Source: docs/numerics.md#relu-by-keys

    >>> relu_by_keys_weights(jnp.array([[3.0, -2.0]])).tolist()
    [[1.5, 0.0]]
    """
    return jax.nn.relu(scores) / scores.shape[-1]


MATH = KindMath(
    weights=lambda scores, context: relu_by_keys_weights(scores),
    lowered=relu.lowered,
    score_scale=lambda config, tokens: usual_scale(config) / tokens,
)
