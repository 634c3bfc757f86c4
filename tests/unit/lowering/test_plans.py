"""The plan of a small network is the recorded one, so that no refactoring moves it unnoticed."""

import json

import pytest

from tests.golden.plans.make import ERROR_BUDGET, FILE, choose_plan

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
    """Of the same kind and the same length, whatever the processor."""
    assert list(chosen["plan"]) == list(RECORDED["plan"])
    for label, approximation in RECORDED["plan"].items():
        assert without_numbers(chosen["plan"][label]) == without_numbers(approximation), label


def test_the_same_intervals_and_fits(chosen):
    """Up to what another processor's rounding may change."""
    for label, approximation in RECORDED["plan"].items():
        expected = pytest.approx(list(numbers_in(approximation)), rel=1e-3, abs=1e-6)
        assert list(numbers_in(chosen["plan"][label])) == expected, label


def without_numbers(value):
    """Return a document with a 0 in place of each fraction."""
    if isinstance(value, dict):
        return {name: without_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_numbers(part) for part in value]
    return 0 if isinstance(value, float) else value


def numbers_in(value):
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(part)
    elif isinstance(value, float):
        yield value
