"""Every approximation keeps its promise on its domain, and outside does what its card says."""

import numpy as np
import pytest

from mpcvit.artifacts.config import Activation
from mpcvit.errors import UserError
from mpcvit.lowering.approximations import GELU_FORMS, Reciprocal, SteepFunction, invert_roots
from mpcvit.lowering.fitting import (
    exact,
    fit_chain,
    fit_gelu,
    fit_inverse_root,
    fit_reciprocal,
    fit_steep,
    largest_error,
)

APPROXIMATIONS = {
    "reciprocal": lambda: fit_reciprocal(1.0, 100.0, 1e-3),
    "wide reciprocal": lambda: fit_reciprocal(0.5, 700.0, 5e-3),
    "inverse root": lambda: fit_inverse_root(0.5, 5.0, 1e-5, 1e-3),
    "wide inverse root": lambda: fit_inverse_root(0.03, 5.0, 1e-5, 1e-4),
    "exp": lambda: fit_steep(SteepFunction.EXP, -4.0, 4.0, 1e-3),
    "wide exp": lambda: fit_steep(SteepFunction.EXP, -8.0, 9.5, 1e-3),
    "cube": lambda: fit_steep(SteepFunction.RECTIFIED_CUBE, -6.0, 5.0, 1e-2),
    **{
        activation.value: lambda activation=activation: fit_gelu(activation, 5.0, 1e-3)
        for activation in GELU_FORMS
    },
}


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_declared_error_holds(name):
    own = APPROXIMATIONS[name]()
    assert largest_error(own) <= own.max_error
    assert own.max_error <= {"wide reciprocal": 5e-3, "cube": 1e-2}.get(name, 1e-3)


def test_the_promise_has_teeth():
    narrow = fit_reciprocal(1.0, 100.0, 1e-3)
    wide = Reciprocal(low=0.2, high=100.0, steps=narrow.steps)
    assert largest_error(wide) > narrow.max_error


def test_a_tighter_tolerance_takes_more_exchanges():
    assert (
        fit_inverse_root(0.3, 5.0, 0.0, 1e-4).exchanges
        > fit_inverse_root(0.3, 5.0, 0.0, 1e-2).exchanges
    )
    assert fit_gelu(Activation.GELU, 6.0, 1e-3).exchanges == 5
    assert fit_gelu(Activation.GELU, 5.0, 1e-3).exchanges == 4


def test_below_its_interval_a_reciprocal_fades_out():
    """A row with a tiny sum gets weights that sum to less than one, never to more."""
    own = fit_reciprocal(1.0, 400.0, 1e-3)
    sums = np.linspace(0, 1, 101, dtype=np.float32)
    weights = sums * np.asarray(own(sums))
    assert weights[0] == 0
    assert (np.diff(weights) > -own.max_error).all()
    assert weights.max() <= 1 + own.max_error


@pytest.mark.parametrize("name", ["exp", "wide exp", "cube"])
def test_a_little_below_its_interval_a_steep_function_stays_small(name):
    """A score that falls out of the interval weighs no more than an average one."""
    own = APPROXIMATIONS[name]()
    low, high = own.domain
    below = np.linspace(low - (high - low) / 8, low, 1001, dtype=np.float32)
    assert np.abs(np.asarray(own(below))).max() <= 1
    if own.squarings:
        assert np.asarray(own(np.linspace(2 * low, 2 * high, 1001, dtype=np.float32))).min() >= 0


def test_inverse_roots_of_different_lengths_share_their_exchanges():
    short, long = fit_inverse_root(0.5, 5.0, 0.0, 1e-2), fit_inverse_root(2.0, 99.0, 0.0, 1e-3)
    assert short.exchanges < long.exchanges
    arrays = [np.linspace(0.5, 5, 6, dtype=np.float32).reshape(2, 3), np.float32([2, 50, 99])]
    for own, x, found in zip(
        (short, long), arrays, invert_roots([short, long], arrays), strict=True
    ):
        np.testing.assert_allclose(found, exact(own, x), rtol=own.max_error)


@pytest.mark.parametrize(
    "fit",
    [
        lambda: fit_reciprocal(0.0, 1.0, 1e-3),
        lambda: fit_reciprocal(1e-12, 1e6, 1e-9),
        lambda: fit_inverse_root(-1.0, 1.0, 1e-5, 1e-3),
        lambda: fit_gelu(Activation.GELU, 100.0, 1e-3),
        lambda: fit_steep(SteepFunction.EXP, 0.0, 9000.0, 1e-3),
    ],
)
def test_what_cannot_be_done_is_refused(fit):
    with pytest.raises(UserError):
        fit()


def test_a_reciprocal_closer_than_rounding_is_refused():
    with pytest.raises(UserError, match="no reciprocal"):  # and no float overflows on the way
        fit_reciprocal(1.0, 1.2, 1e-6)


@pytest.mark.parametrize("products", [2, 3, 4])
@pytest.mark.parametrize("function", ["gelu", "exp"])
def test_rounding_does_not_move_a_fit(function, products):
    """Another processor adds in another order; its plan must be the same one."""
    z = np.cos(np.linspace(0, np.pi, 161))
    target = exact(APPROXIMATIONS[function](), 4 * np.sqrt((z + 1) / 2))
    rounded = target * (1 + 1e-14 * np.random.default_rng(0).standard_normal(len(z)))
    one, other = (
        fit_chain(z, values, np.full_like(z, 1e-3), products) for values in (target, rounded)
    )
    for mine, theirs in zip(numbers_of(one), numbers_of(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-8)


def numbers_of(chain):
    return [*chain.left, *chain.right, chain.output]


def test_numbers_of_a_fit_stay_small():
    """Fixed point has few digits, which large numbers that cancel would use up."""
    for name in ("gelu", "exp", "wide exp"):
        assert max(np.abs(row).max() for row in numbers_of(APPROXIMATIONS[name]())) < 16
