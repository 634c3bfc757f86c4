"""Softmax attention, the teacher's."""

import math

import jax
import jax.numpy as jnp  # noqa: F401 -- for the example
from jaxtyping import Array

from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights, usual_scale


def softmax_weights(scores: Scores) -> Weights:
    """Turn scores into a distribution over keys.

        w[i, j] = exp(s[i, j] - m[i]) / sum_k exp(s[i, k] - m[i]),  m[i] = max_k s[i, k]

    Range: (0, 1). Keeps: monotonicity, non-negativity, normalisation.
    Secure cost: the highest: max (a tree of comparisons), exp, reciprocal, product.
    Source: docs/numerics.md#softmax

    >>> softmax_weights(jnp.zeros((1, 4))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    return jax.nn.softmax(scores, axis=-1)


def lowered(scores: Array, context: Context) -> Phases:
    """Yield the phases of softmax without a maximum; scores are at half their scale.

        b = exp(s - mean s),  w = (b / (sqrt(n) mean b))^2,  divided by its sum

    A row of b has a mean of at least one. After that crude division, its squares have
    a sum in [1, n] whatever the image. So neither function needs a maximum.
    """
    (powers,) = yield Step("exponential", [scores - _mean(scores)])
    (levels,) = yield Step("row_scale", [_mean(powers)[..., 0]])
    levels = levels * (1 / math.sqrt(powers.shape[-1]))
    (roots,) = yield Step("multiply", [(powers, levels[..., None])])
    (weights,) = yield Step("square", [roots])
    (inverses,) = yield Step("denominator", [weights.sum(axis=-1)])
    return weights, inverses


def _mean(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True) * (1 / x.shape[-1])


MATH = KindMath(
    weights=lambda scores, context: softmax_weights(scores),
    lowered=lowered,
    score_scale=lambda config, tokens: usual_scale(config) / 2,
)
