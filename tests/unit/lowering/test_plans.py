"""The plan of a small network is the recorded one, so that no refactoring moves it unnoticed."""

import json

import pytest

from tests.golden.plans.make import ERROR_BUDGET, FILE, choose_plan

RECORDED = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def chosen():
    return json.loads(json.dumps(choose_plan()))


def test_the_recorded_plan_kept_its_budget():
    assert 0 < RECORDED["error"] <= ERROR_BUDGET


def test_the_same_approximation_everywhere(chosen):
    """Of the same kind and length; both decide the exchanges."""
    assert list(chosen["plan"]) == list(RECORDED["plan"])
    for label, approximation in RECORDED["plan"].items():
        assert shape_of(chosen["plan"][label]) == shape_of(approximation), label


def test_the_same_numbers(chosen):
    """Up to what another processor's rounding may change."""
    assert list(numbers_in(chosen)) == pytest.approx(list(numbers_in(RECORDED)), rel=1e-3)


def shape_of(value):
    """Return a document with its fractions left out."""
    if isinstance(value, dict):
        return {name: shape_of(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shape_of(part) for part in value]
    return None if isinstance(value, float) else value


def numbers_in(value):
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(part)
    elif isinstance(value, float):
        yield value
