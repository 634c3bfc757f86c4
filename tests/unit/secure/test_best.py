"""The circuit that chooses classes, against NumPy: ties, extremes, groups, leads and checks."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcvit.secure.spu.answer import choose_best, is_kept

VALUES = st.integers(-3, 3) | st.sampled_from([-(2**20), 2**20])  # few, so that ties are common


def best_of(row, count):
    """By a stable sort, which keeps the first of equal values first."""
    chosen = np.zeros(len(row), int)
    chosen[np.argsort(-np.asarray(row), kind="stable")[:count]] = 1
    return chosen.tolist()


@settings(max_examples=60, deadline=None)
@given(
    row=st.lists(VALUES, min_size=6, max_size=11),
    count=st.sampled_from([1, 2, 5]),
    groups=st.sampled_from([1, 2]),
)
def test_the_best_are_those_of_a_stable_sort(row, count, groups):
    if len(row) // groups < count:
        groups = 1
    found = choose_best(jnp.asarray([row], jnp.float32), count, groups=groups)
    assert found.chosen[0].tolist() == best_of(row, count)


@settings(max_examples=40, deadline=None)
@given(row=st.lists(VALUES, min_size=4, max_size=9), groups=st.sampled_from([1, 2]))
def test_a_lead_is_clear_if_it_exceeds_every_other(row, groups):
    found = choose_best(jnp.asarray([row], jnp.float32), 1, lead=1.5, groups=groups)
    ordered = sorted(row)
    is_clear = ordered[-1] - ordered[-2] >= 1.5
    assert found.leads[0].tolist() == (best_of(row, 1) if is_clear else [0] * len(row))


@pytest.mark.parametrize("groups", [1, 2])
def test_checks_are_of_their_own_image(groups):
    checks = jnp.asarray([[0.0, 1.0], [2.0, -0.25], [3.0, 5.0]])
    values = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)), jnp.float32)
    found = choose_best(values, 1, checks=checks, groups=groups)
    assert found.is_kept[:, 0].tolist() == [1, 0, 1]
    assert is_kept(checks)[:, 0].tolist() == [1, 0, 1]
    assert found.chosen.argmax(axis=1).tolist() == values.argmax(axis=1).tolist()


def test_a_thousand_classes_take_two_levels():
    values = np.random.default_rng(1).integers(-50, 50, (2, 1000))  # each value about ten times
    for count in (1, 5):
        found = choose_best(jnp.asarray(values, jnp.float32), count)
        assert found.chosen.tolist() == [best_of(row, count) for row in values]
