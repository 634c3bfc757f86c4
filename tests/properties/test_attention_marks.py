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

from mpcvit.artifacts.architecture import AttentionKind
from mpcvit.model.attention import (
    PROPERTIES,
    KindParameters,
    _weights,
    cross_normalise,
)
from tests.models import small_config

K = AttentionKind
PAPER = {  # monotonicity, non-negativity, normalisation, as printed
    K.SOFTMAX: (True, True, True),
    K.LINFORMER: (True, True, True),
    K.RELU: (True, True, False),
    K.RELU6: (True, True, False),
    K.SPARSEMAX: (True, True, False),
    K.XNORM: (True, False, False),
    K.SQUARE: (False, True, False),
    K.QUAD2: (False, True, True),
    K.SCALING: (True, False, False),
    K.RELU_SOFTMAX: (True, True, True),
}
CONFIG = small_config(attention_eps=1e-8, quad2_offset=1e-3)
ROUNDING = 1e-6  # a few units of float32's last place at one

# At least one score well above zero: an empty row of relu_softmax sums to zero by its eps.
rows = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=7).filter(lambda r: max(r) > 0.01)


@functools.partial(jax.jit, static_argnums=0)
def compiled(kind, scores):
    if kind is K.XNORM:
        return cross_normalise(scores, jnp.ones((1, 1)), eps=1e-12)
    return _weights(kind, scores, CONFIG, KindParameters())


def weights(kind, row):
    return np.asarray(compiled(kind, jnp.array([row], jnp.float32)))[0]


def raised(kind, row, step):
    """How a weight moves when its own score rises."""
    higher = [row[0] + step, *row[1:]]
    return weights(kind, higher)[0] - weights(kind, row)[0]


def test_our_marks_are_the_papers():
    ours = {
        kind: (marks.monotone, marks.non_negative, marks.normalised)
        for kind, marks in PROPERTIES.items()
        if kind in PAPER
    }
    assert ours == PAPER


@pytest.mark.parametrize("kind", [kind for kind in PAPER if PAPER[kind][0]])
@given(row=rows, step=st.floats(0.01, 5))
def test_monotone(kind, row, step):
    assume(max(row[1:]) > 0.01)
    assert raised(kind, row, step) >= -ROUNDING * max(1, max(map(abs, row)))


@pytest.mark.parametrize("kind", [kind for kind in PAPER if PAPER[kind][1]])
@given(row=rows)
def test_non_negative(kind, row):
    assert weights(kind, row).min() >= 0


@pytest.mark.parametrize("kind", [kind for kind in PAPER if PAPER[kind][2]])
@given(row=rows)
def test_normalised(kind, row):
    assert abs(weights(kind, row).sum() - 1) <= 10 * ROUNDING


@pytest.mark.parametrize("kind", [kind for kind in PAPER if not PAPER[kind][0]])
def test_not_monotone(kind):
    assert raised(kind, [-3.0, 1.0, 2.0], 1.0) < -0.01


@pytest.mark.parametrize("kind", [kind for kind in PAPER if not PAPER[kind][1]])
def test_negative(kind):
    assert weights(kind, [-3.0, 1.0, 2.0]).min() < -0.01


@pytest.mark.parametrize("kind", [kind for kind in PAPER if not PAPER[kind][2]])
def test_not_normalised(kind):
    assert abs(weights(kind, [4.0, 1.0, 2.0]).sum() - 1) > 0.1
