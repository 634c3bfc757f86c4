"""The plan of a small network is the recorded one, so that no refactoring moves it unnoticed."""

import json

import pytest

from tests.golden.plans.make import ERROR_BUDGET, FILE, choose_plan

# Gauss-Newton from random starts: rounding decides where it ends, and how many products it takes
FITTED_AT_RANDOM = ("left", "right", "output", "max_error")
RECORDED = json.loads(FILE.read_text())


pytestmark = pytest.mark.long  # many plans are tried


@pytest.fixture(scope="module")
def chosen():
    return json.loads(json.dumps(choose_plan()))


def test_the_recorded_plan_kept_its_budget():
    assert 0 < RECORDED["error"] <= ERROR_BUDGET


def test_the_plan_keeps_its_budget(chosen):
    assert 0 < chosen["error"] <= ERROR_BUDGET


def test_the_same_approximation_everywhere(chosen):
    """Of the same kind and, where the fit does not depend on the processor, the same length."""
    assert list(chosen["plan"]) == list(RECORDED["plan"])
    for label, approximation in RECORDED["plan"].items():
        assert shape_of(chosen["plan"][label]) == shape_of(approximation), label


def test_the_same_intervals(chosen):
    """Up to what another processor's rounding may change."""
    for label, approximation in RECORDED["plan"].items():
        expected = pytest.approx(list(numbers_in(shape_of(approximation, 1.0))), rel=1e-3)
        assert list(numbers_in(shape_of(chosen["plan"][label], 1.0))) == expected, label


def shape_of(value, fractions=None):
    """Return a document without the numbers of random fits, and without fractions by default."""
    if isinstance(value, dict):
        return {
            name: shape_of(part, fractions)
            for name, part in value.items()
            if name not in FITTED_AT_RANDOM
        }
    if isinstance(value, list):
        return [shape_of(part, fractions) for part in value]
    return fractions and value if isinstance(value, float) else value


def numbers_in(value):
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(part)
    elif isinstance(value, float):
        yield value
