"""What lowering counts on: the price of SPU's operations, by ring and truncation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.protocols import Truncation
from mpcvit.lowering.attention import products
from mpcvit.secure.probe import measure_function
from mpcvit.secure.spu.rewrite import square

NARROW = load_profile("semi2k")
WIDE = replace(NARROW, ring_bits=128, fraction_bits=26)
LOCAL = replace(WIDE, truncation=Truncation.LOCAL)
ROWS, INNER, COLUMNS, HEADS = 5, 7, 11, 3


def array(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


X, Y = array(ROWS, INNER), array(ROWS, INNER)
# name: function, inputs, numbers that a party opens; then exchanges in each of the rings
BLOCKS = {
    "product": (lambda x, y: x * y, (X, Y), 2 * X.size, (2, 2, 1)),
    # both factors are opened, though they are one
    "square": (lambda x: x * x, (X,), 2 * X.size, (2, 2, 1)),
    "a public factor": (lambda x: 0.3 * x, (X,), 0, (1, 1, 0)),
    "a public choice": (lambda x: jnp.where(np.eye(*X.shape) > 0, x, 0.0), (X,), 0, (0, 0, 0)),
    "product of matrices": (
        lambda x, w: x @ w,
        (X, array(INNER, COLUMNS)),
        X.size + INNER * COLUMNS,
        (2, 2, 1),
    ),
    "products of a batch, in turn": (
        lambda x, w: x @ w,
        (array(HEADS, ROWS, INNER), array(HEADS, INNER, COLUMNS)),
        HEADS * (X.size + INNER * COLUMNS),
        (2 * HEADS, 2 * HEADS, HEADS),
    ),
    # of small matrices all rows with all columns, which opens no more
    "products of a batch, together": (
        lambda a, b: jnp.stack(products(list(zip(a, b, strict=True)))),
        (array(HEADS, ROWS, INNER), array(HEADS, INNER, COLUMNS)),
        HEADS * (X.size + INNER * COLUMNS),
        (2, 2, 1),
    ),
    "relu": (jax.nn.relu, (X,), None, (8, 9, 9)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_exchanges(name):
    function, inputs, opened, exchanges = BLOCKS[name]
    for profile, expected in zip((NARROW, WIDE, LOCAL), exchanges, strict=True):
        found = measure_function(function, inputs, profile)
        assert found.cost.exchanges == expected, profile
        np.testing.assert_allclose(found.output, function(*inputs), atol=1e-4)
    if opened is not None:  # of the last, which truncates for nothing
        assert found.cost.sent_bytes == 16 * opened


def test_a_true_square():
    """One number is opened for each element, in one exchange, with the error of a product."""
    x = np.concatenate([X.ravel(), [0.0, 1.0, -1.0, 900.0, -(2.0**-20)]]).astype(np.float32)
    found = measure_function(square, (x,), replace(LOCAL, squares=True))
    assert (found.cost.exchanges, found.cost.sent_bytes) == (1, 16 * x.size)
    exact = x.astype(np.float64) ** 2
    np.testing.assert_allclose(found.output, exact, rtol=1e-6, atol=2.0**-22)
