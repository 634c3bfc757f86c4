"""How often images leave the intervals that calibration found."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from jax import Array

from mpcvit.lowering.approximation import Approximation
from mpcvit.lowering.plan import HEAD_NORM, Function, Plan, place_of

Counts = dict[str, Any]
"""For every place of a plan: how many values lay outside of its interval, of how many."""


def watch(plan: Plan) -> tuple[list[Any], Function | None, Counts]:
    """A plan's functions for its layers and its last norm, and the counts they fill when called."""
    counts: Counts = {}

    def watched(place: str, stand_in: Approximation | None) -> Function | None:
        if stand_in is None:
            return None
        low, high = stand_in.domain

        def function(x: Array) -> Array:
            own = jnp.stack([((x < low) | (x > high)).sum(), jnp.asarray(x.size)])
            counts[place] = counts.get(place, 0) + own
            return stand_in(x)

        return function

    layers = [
        SimpleNamespace(
            **{name: watched(place_of(index, name), own) for name, own in vars(layer).items()}
        )
        for index, layer in enumerate(plan.layers)
    ]
    return layers, watched(HEAD_NORM, plan.norm), counts
