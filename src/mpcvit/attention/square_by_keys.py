"""Square attention divided by the number of keys, of PriViT."""

import math

import jax.numpy as jnp

from mpcvit.attention import square
from mpcvit.attention.kind_math import KindMath, Scores, Weights, usual_scale


def square_by_keys_weights(scores: Scores) -> Weights:
    """Square each score, and divide by the number of keys.

        w[i, j] = s[i, j]^2 / n

    Range: [0, inf). Keeps: non-negativity.
    Secure cost: one square per entry; 1/n folds into weights.
    Origin: Dhyani et al., PriViT (arXiv 2310.04604); `src/parametric_masks.py` of its code
    has `square(x) / 197`, where 197 is its number of tokens.
    Source: docs/numerics.md#square-by-keys

    >>> square_by_keys_weights(jnp.array([[3.0, -2.0]])).tolist()
    [[4.5, 2.0]]
    """
    return jnp.square(scores) / scores.shape[-1]


MATH = KindMath(
    weights=lambda scores, context: square_by_keys_weights(scores),
    lowered=square.lowered,
    score_scale=lambda config, tokens: usual_scale(config) / math.sqrt(tokens),
)
