"""The circuit that chooses classes, against NumPy: ties, extremes, groups, leads and checks."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcvit.artifacts.record import Reveal
from mpcvit.lowering.out_of_range import Trust
from mpcvit.secure.card import Opening
from mpcvit.secure.spu.best import choose_best, count_noise, is_kept, mask_best, mask_checks

VALUES = st.integers(-3, 3) | st.sampled_from([-(2**20), 2**20])  # few, so that ties are common
ODD, EVEN = 7, 10  # classes: as few numbers as show both, because each is compiled


@partial(jax.jit, static_argnums=1, static_argnames=("lead", "groups"))
def best(*args, **options):
    return fields_of(choose_best(*args, **options))


@partial(jax.jit, static_argnames="groups")
def mask(values, checks, noise=None, groups=1):
    """Mask the best with a lead of 1.5; without noise, by numbers that show every zero."""
    if noise is None:
        size = count_noise(values, checks=checks, lead=1.5, groups=groups)
        noise = jnp.ones((len(values), size))
    return fields_of(mask_best(values, noise, checks=checks, lead=1.5, groups=groups))


def fields_of(found):
    return {name: value for name, value in vars(found).items() if value is not None}


def rows(*sizes):
    return st.sampled_from(sizes).flatmap(lambda n: st.lists(VALUES, min_size=n, max_size=n))


def best_of(row, count):
    """By a stable sort, which keeps the first of equal values first."""
    chosen = np.zeros(len(row), int)
    chosen[np.argsort(-np.asarray(row), kind="stable")[:count]] = 1
    return chosen.tolist()


@settings(max_examples=60, deadline=None)
@given(row=rows(ODD, EVEN), count=st.sampled_from([1, 2, 5]), groups=st.sampled_from([1, 2]))
def test_the_best_are_those_of_a_stable_sort(row, count, groups):
    if len(row) // groups < count:
        groups = 1
    found = best(jnp.asarray([row], jnp.float32), count, groups=groups)
    assert found["chosen"][0].tolist() == best_of(row, count)


@settings(max_examples=40, deadline=None)
@given(row=rows(ODD, EVEN), groups=st.sampled_from([1, 2]))
def test_a_lead_is_clear_if_it_exceeds_every_other(row, groups):
    found = best(jnp.asarray([row], jnp.float32), 1, lead=1.5, groups=groups)
    ordered = sorted(row)
    is_clear = ordered[-1] - ordered[-2] >= 1.5
    assert found["leads"][0].tolist() == (best_of(row, 1) if is_clear else [0] * len(row))


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
    masked = mask_best(jnp.asarray(values, jnp.float32), jnp.ones((2, count_noise(values))))
    assert (masked.chosen == 0).tolist() == [best_of(row, 1) for row in values]


@settings(max_examples=60, deadline=None)
@given(row=rows(2, ODD, EVEN), groups=st.sampled_from([1, 2, 3]))
def test_masked_answers_are_those_of_counts(row, groups):
    groups, values = max(min(groups, len(row) // 2), 1), jnp.asarray([row], jnp.float32)
    checks = jnp.asarray([row[:2]], jnp.float32)
    masked = mask(values, checks, groups=groups)
    expected = best(values, 1, checks=checks, lead=1.5)
    assert (masked["chosen"] == 0).tolist() == expected["chosen"].tolist()
    assert (masked["leads"] == 0).tolist() == expected["leads"].tolist()
    assert (masked["is_kept"] == 0).tolist() == expected["is_kept"].tolist()
    only = mask_checks(checks, jnp.ones(checks.shape))
    assert (only == 0).tolist() == expected["is_kept"].tolist()


def rank_of_bits(rows):
    """The rank modulo 2, by elimination."""
    rows, rank = [int("".join(map(str, row)), 2) for row in rows], 0
    while rows:
        pivot = max(rows)
        rows.remove(pivot)
        if pivot:
            rank += 1
            lead = pivot.bit_length()
            rows = [row ^ pivot if row.bit_length() == lead else row for row in rows]
    return rank


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_all_that_opens_beside_zeros_is_uniform_together(groups):
    """Sums of noise are jointly uniform modulo 2^k if they are independent modulo 2."""
    rng = np.random.default_rng(groups)
    opened = jax.vmap(partial(mask, groups=groups), in_axes=(None, None, 0))
    for _ in range(20):
        values = jnp.asarray(rng.integers(-3, 3, (1, 7)), jnp.float32)
        checks = jnp.asarray(rng.integers(-1, 3, (1, 4)), jnp.float32)
        size = 2 * (7 * 6 if groups == 1 else groups * (groups - 1) + 7) + 4
        found = opened(values, checks, jnp.eye(size)[:, None])
        parts = [found["chosen"], found["leads"], found["is_kept"]]
        table = np.concatenate([part[:, 0] for part in parts], axis=1).T.astype(int)
        hidden = [row for row in table if row.any()]
        assert len(hidden) >= 6  # at most one value is the best
        assert rank_of_bits(hidden) == len(hidden)


def test_an_opening_takes_as_much_noise_as_it_has_bits():
    trust = Trust(doubt=1.5, guard=True)
    opening = Opening(reveal=Reveal.CLASS, classes=7, trust=trust, masked=True)
    values, checks = jnp.ones((3, 7)), jnp.ones((3, 4))
    assert opening.count_noise(values, checks) == 2 * 7 * 6 + 4
    best_five = replace(opening, reveal=Reveal.TOP5)
    assert (opening.takes_noise, best_five.takes_noise) == (True, False)
