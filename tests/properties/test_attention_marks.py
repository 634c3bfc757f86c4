"""The paper's table of attention variants: which keep softmax's properties.

A mark that the table gives must hold for every row of scores; a mark that it
withholds must fail for some row.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpcvit.attention.kind_math import Context, math_of
from mpcvit.attention.xnorm import cross_normalise
from mpcvit.kinds.table import KINDS
from tests.models import small_config

PAPER = {  # monotonicity, non-negativity, normalisation, as printed
    "softmax": (True, True, True),
    "linformer": (True, True, True),
    "relu": (True, True, False),
    "relu6": (True, True, False),
    "sparsemax": (True, True, False),
    "xnorm": (True, False, False),
    "square": (False, True, False),
    "quad2": (False, True, True),
    "scaling": (True, False, False),
    "relu_softmax": (True, True, True),
}
CONFIG = small_config(attention_eps=1e-8, quad2_offset=1e-3)
ROUNDING = 1e-6  # a few units of float32's last place at one

# At least one score well above zero: an empty row of relu_softmax sums to zero by its eps.
rows = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=7).filter(lambda r: max(r) > 0.01)


@functools.partial(jax.jit, static_argnums=0)
def compiled(kind, scores):
    own = math_of(kind)
    if own.weights is None:  # forms no scores: its rows are normalised in their place
        return cross_normalise(scores, jnp.ones((1, 1)), eps=1e-12)
    return own.weights(scores, Context(config=CONFIG))


def weights(kind, row):
    return np.asarray(compiled(kind, jnp.array([row], jnp.float32)))[0]


def raised(kind, row, step):
    """How a weight moves when its own score rises."""
    higher = [row[0] + step, *row[1:]]
    return weights(kind, higher)[0] - weights(kind, row)[0]


def marks(kind):
    own = kind.marks
    return own.monotone, own.non_negative, own.normalised


def test_our_marks_are_the_papers():
    assert {name: marks(KINDS[name]) for name in PAPER} == PAPER


def kinds_with(mark, *, kept):
    # what THE-X keeps depends on the network that it learnt
    found = [kind for kind in KINDS.values() if math_of(kind).learn is None or kind.name in PAPER]
    found = [kind for kind in found if marks(kind)[mark] is kept]
    return pytest.mark.parametrize("kind", found, ids=str)


@kinds_with(0, kept=True)
@given(row=rows, step=st.floats(0.01, 5))
def test_monotone(kind, row, step):
    assume(max(row[1:]) > 0.01)
    assert raised(kind, row, step) >= -ROUNDING * max(1, max(map(abs, row)))


@kinds_with(1, kept=True)
@given(row=rows)
def test_non_negative(kind, row):
    assert weights(kind, row).min() >= 0


@kinds_with(2, kept=True)
@given(row=rows)
def test_normalised(kind, row):
    assert abs(weights(kind, row).sum() - 1) <= 10 * ROUNDING


@kinds_with(0, kept=False)
def test_not_monotone(kind):
    """The first score is below the offset of every parabola."""
    assert raised(kind, [-9.0, 1.0, 2.0], 1.0) < -0.01


@kinds_with(1, kept=False)
def test_negative(kind):
    assert weights(kind, [-3.0, 1.0, 2.0]).min() < -0.01


@kinds_with(2, kept=False)
def test_not_normalised(kind):
    assert abs(weights(kind, [4.0, 1.0, 2.0]).sum() - 1) > 0.1
