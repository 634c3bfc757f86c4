"""How often images leave the intervals that calibration found."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from mpcvit.lowering.approximation import Approximation
from mpcvit.lowering.functions import Functions

Counts = dict[str, Any]
"""For every place of a plan: how many values lay outside of its interval, of how many."""


def watch(functions: Functions) -> tuple[Functions, Counts]:
    """The same functions, and the counts that their stand-ins fill when called."""
    counts: Counts = {}

    def watched(place: str, own: Any) -> Any:
        stand_in: Approximation = own
        if not hasattr(own, "domain"):  # exact, and right everywhere
            return own
        low, high = stand_in.domain

        def function(x: Array) -> Array:
            found = jnp.stack([((x < low) | (x > high)).sum(), jnp.asarray(x.size)])
            counts[place] = counts.get(place, 0) + found
            return stand_in(x)

        return function

    return functions.wrapped(watched), counts
