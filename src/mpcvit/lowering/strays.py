"""What leaves the intervals that calibration found: how often, and whether it did at all."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from mpcvit.lowering.approximation import Watched
from mpcvit.lowering.functions import Functions
from mpcvit.lowering.plan import Trust

Counts = dict[str, Any]
"""For every place of a plan: how many values lay outside of its interval, of how many."""

_LENGTHS = ("query_length", "product_length")  # short rows are scaled like the shortest known


def watch(functions: Functions) -> tuple[Functions, Counts]:
    """The same functions, and the counts that their stand-ins fill when called."""
    counts: Counts = {}

    def watched(place: str, own: Any) -> Any:
        if not hasattr(own, "domain"):  # exact, and right everywhere
            return own
        low, high = own.domain

        def note(x: Array) -> None:
            found = jnp.stack([((x < low) | (x > high)).sum(), jnp.asarray(x.size)])
            counts[place] = counts.get(place, 0) + found

        return Watched(own, note)

    return functions.wrapped(watched), counts


def is_watched(place: str, own: Any, trust: Trust) -> bool:
    """Whether a guard looks at what a function is given: not where nothing can go wrong."""
    return trust.guard and hasattr(own, "domain") and place not in trust.assured


def guard(functions: Functions, trust: Trust) -> tuple[Functions, list[Array]]:
    """The same functions, and a list that fills with what must not be negative.

    An entry has a row for each image. Places that cannot leave their intervals
    before another does are left out.
    """
    slack: list[Array] = []

    def guarded(place: str, own: Any) -> Any:
        if not is_watched(place, own, replace(trust, guard=True)):
            return own

        def note(x: Array) -> None:
            found = own.slack(x)
            found = found[-1:] if place.endswith(_LENGTHS) else found
            slack.extend(part.reshape(part.shape[0], -1) for part in found)

        return Watched(own, note)

    return functions.wrapped(guarded), slack
