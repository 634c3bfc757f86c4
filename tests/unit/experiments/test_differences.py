"""Differences between networks: paired by seed, and undecided where they are."""

import pytest
from scipy import stats

from mpcvit.experiments.differences import differences


def test_differences_are_paired_by_seed_and_agree_with_scipy():
    """The seeds of a network differ by more than the two networks do."""
    first = {0: 60.1, 1: 63.4, 2: 58.2}
    second = {2: 57.9, 1: 63.0, 0: 59.8, 3: 99.0}
    (pair,) = differences({"a": first, "b": second})
    interval = stats.ttest_rel([60.1, 63.4, 58.2], [59.8, 63.0, 57.9]).confidence_interval(0.95)
    assert (pair.low, pair.high) == pytest.approx((interval.low, interval.high), abs=0.005)
    assert (pair.seeds, pair.points, pair.verdict) == (3, 0.33, "more")
    assert pair.seeds_needed == 15  # 1.6 / 0.33^2, rounded up


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ({0: 60.0, 1: 61.5, 2: 60.1}, "undecided"),
        ({0: 62.0, 1: 62.2, 2: 62.1}, "less"),
        ({1: 50.0}, "one seed: undecided"),
    ],
)
def test_verdicts(other, verdict):
    (pair,) = differences({"a": {0: 60.0, 1: 60.1, 2: 60.2}, "b": other})
    assert pair.verdict == verdict


def test_networks_without_a_common_seed_are_no_pair():
    assert differences({"a": {0: 60.0}, "b": {1: 61.0}}) == []
    assert differences({"a": {0: 60.0}}) == []
