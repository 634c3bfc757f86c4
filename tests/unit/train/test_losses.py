"""Losses against plain NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.train.evaluate import cross_entropy, in_top
from tests.tolerances import F32, assert_close


def test_cross_entropy():
    rng = np.random.default_rng(0)
    logits = 5 * rng.standard_normal((13, 7))
    targets = rng.dirichlet(np.ones(7), 13)
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -(targets * log_softmax).sum(axis=1)
    actual = cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32))
    assert_close(actual, expected, F32)


def test_in_top():
    rng = np.random.default_rng(1)
    logits, labels = rng.standard_normal((101, 7)), rng.integers(0, 7, 101)
    order = np.argsort(-logits, axis=1)
    for k in (1, 5):
        expected = [label in row[:k] for row, label in zip(order, labels, strict=True)]
        actual = in_top(jnp.asarray(logits, jnp.float32), jnp.asarray(labels), k)
        assert actual.tolist() == [float(hit) for hit in expected]


def test_a_constant_output_is_never_right():
    assert float(in_top(jnp.zeros((3, 7)), jnp.array([0, 1, 6]), 1).sum()) == 0


@pytest.mark.parametrize("logits", [(np.nan,) * 3, (np.nan, 1, 2), (3, np.nan, 2), (np.inf,) * 3])
def test_what_is_no_number_is_never_right(logits):
    """A network that runs away must not seem to know every picture."""
    assert float(in_top(jnp.array([logits], jnp.float32), jnp.array([0]), 1)[0]) == 0
