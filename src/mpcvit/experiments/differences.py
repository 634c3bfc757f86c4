"""Differences between the networks of an experiment, over the seeds that both have."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy import stats

CONFIDENCE = 0.95
_SEED_DEVIATION = 0.32  # points, between seeds of one network at `cifar10-tiny` scale
# Two arms, a two-sided test of 5 % and a power of 80 %: n = 2 (1.96 + 0.84)^2 (sd / delta)^2
_SEEDS_OF_A_POINT = 2 * (1.96 + 0.84) ** 2 * _SEED_DEVIATION**2


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of two networks' accuracies, in points, with a 95 % interval.

    The interval is Student's over pairs of the same seed. `seeds_needed` is how
    many seeds of each network a difference of this size takes.
    """

    network: str
    other: str
    seeds: int
    points: float
    low: float | str
    high: float | str
    verdict: str
    seeds_needed: int | str


def differences(accuracies: Mapping[str, Mapping[int, float]]) -> list[Difference]:
    """Compare each pair of networks, from their accuracies in percent by seed.

    >>> one = {"a": {0: 61.0, 1: 61.3, 2: 61.2}, "b": {0: 60.0, 1: 60.2, 2: 60.3}}
    >>> differences(one)[0].verdict
    'more'
    """
    found = []
    for network, other in combinations(accuracies, 2):
        both = sorted(accuracies[network].keys() & accuracies[other].keys())
        pairs = [accuracies[network][seed] - accuracies[other][seed] for seed in both]
        if pairs:
            found.append(_difference(network, other, pairs))
    return found


def reach_of_mean(values: Sequence[float]) -> float:
    """Return half of Student's interval of a mean."""
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def _difference(network: str, other: str, pairs: Sequence[float]) -> Difference:
    mean = statistics.fmean(pairs)
    low: float | str = ""
    high: float | str = ""
    verdict = "one seed: undecided"
    if len(pairs) > 1:
        reach = reach_of_mean(pairs)
        low, high = round(mean - reach, 2), round(mean + reach, 2)
        verdict = "more" if mean > reach else "less" if mean < -reach else "undecided"
    return Difference(
        network=network,
        other=other,
        seeds=len(pairs),
        points=round(mean, 2),
        low=low,
        high=high,
        verdict=verdict,
        seeds_needed=max(2, math.ceil(_SEEDS_OF_A_POINT / mean**2)) if mean else "",
    )
