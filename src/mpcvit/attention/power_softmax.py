"""Power softmax attention."""

import jax.numpy as jnp  # noqa: F401 -- for the example
from jaxtyping import Array

from mpcvit.artifacts.config import ModelConfig
from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights, usual_scale


def power_softmax_weights(scores: Scores, power: int, offset: float, eps: float) -> Weights:
    """Replace softmax's exp by an even power.

        w[i, j] = t[i, j]^p / (sum_k t[i, k]^p + eps),  t = (s + c) / max(1, |c|)

    With c = p, t^p is (1 + s / p)^p, which tends to exp(s) as p grows. With c = 0 it is the
    published form.
    Range: [0, 1]. Keeps: non-negativity, normalisation.
    Secure cost: a square per entry for p = 2 and another for each doubling of p, a
    reciprocal per row, a product per entry.
    Fixed point: t is near one if scores are small beside c, so powers neither vanish nor
    overflow. With a small c and a large p, sums of rows lie so far apart that lowering finds
    no close reciprocal. eps encodes to 0 below 2**-fraction_bits.
    Origin: Zimerman et al., Power-Softmax (arXiv 2410.09457).
    Source: docs/numerics.md#power-softmax

    >>> scores = jnp.array([[1.0, -1.0, 0.0, -2.0]])
    >>> power_softmax_weights(scores, power=4, offset=0.0, eps=14.0).tolist()
    [[0.03125, 0.03125, 0.0, 0.5]]
    """
    unit = _unit(offset)
    terms = scores + offset if unit == 1 else scores / unit + offset / unit
    powers = terms**power
    return powers / (powers.sum(axis=-1, keepdims=True) + eps)


def lowered(scores: Array, context: Context) -> Phases:
    """Yield squares and products that make an even power; scores are divided by the unit."""
    power, offset = _constants(context.config)
    (squares,) = yield Step("square", [scores + offset / _unit(offset)])
    powers = squares
    for digit in f"{power // 2:b}"[1:]:
        (powers,) = yield Step("square", [powers])
        if digit == "1":
            (powers,) = yield Step("multiply", [(powers, squares)])
    (inverses,) = yield Step("denominator", [powers.sum(axis=-1)])
    return powers, inverses


def _constants(config: ModelConfig) -> tuple[int, float]:
    return int(config.constant("power")), config.constant("power_offset")


def _unit(offset: float) -> float:
    """Return what t is divided by. Weights do not depend on it, but for eps."""
    return max(1.0, abs(offset))


MATH = KindMath(
    weights=lambda scores, context: power_softmax_weights(
        scores, *_constants(context.config), context.config.attention_eps
    ),
    lowered=lowered,
    score_scale=lambda config, tokens: usual_scale(config) / _unit(_constants(config)[1]),
)
