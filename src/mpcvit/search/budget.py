"""One option of every layer, with the largest value whose seconds fit a budget.

A knapsack with one item per class. Layers are chosen from the last to the first, over the
Pareto front of every state that the layers before must know of.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpcvit.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Option:
    """A way to make one layer: its seconds, its value, and what it means for the other layers.

    `if_normed_s` is paid beside if a later norm is a layer norm, and `is_normed` says
    whether a norm of this layer is one. `bounds` says whether it has a layer
    norm that the whole residual passes. No layer has more `tokens` than the one before.
    """

    seconds: float
    value: float
    tokens: int = 0
    if_normed_s: float = 0.0
    is_normed: bool = False
    bounds: bool = False


class _State(NamedTuple):
    """What the choice of a layer depends on, of the layers after it."""

    tokens: int
    is_normed: bool
    bounds: int


class _Partial(NamedTuple):
    """The options of the last layers; seconds are whole nanoseconds."""

    cost: int
    value: float
    picks: tuple[int, ...]


_Fronts = dict[_State, list[_Partial]]


def choose(
    layers: Sequence[Sequence[Option]],
    budget_s: float,
    *,
    least_bounds: int = 0,
    refuse: Callable[[tuple[int, ...], float], UserError],
) -> tuple[int, ...]:
    """Return the option of each layer; at least `least_bounds` of them must bound the residual.

    Seconds are rounded up, so that what fits truly fits and sums that are equal compare
    so. Of equal values the cheapest is taken, and of equal costs the latest options of the
    earliest layers. `refuse` makes an error of the cheapest choice and its seconds.

    >>> options = [Option(seconds=s, value=v) for s, v in ((0, 0), (1, 2), (4, 3))]
    >>> choose([options] * 2, 5, refuse=lambda picks, least_s: UserError(""))
    (2, 1)
    """
    budget = math.floor(round(budget_s * 1e9, 3))
    fronts = _sweep(layers, least_bounds, lambda states: [min(states)])
    cheapest = min(state for own in _complete(fronts, least_bounds) for state in own)
    if cheapest.cost > budget:
        raise refuse(cheapest.picks, cheapest.cost / 1e9)
    fronts = _sweep(layers, least_bounds, _pareto, budget)
    best = (own[-1] for own in _complete(fronts, least_bounds))
    return min(best, key=lambda state: (-round(state.value, 12), state.cost, _late(state))).picks


def _complete(fronts: _Fronts, least_bounds: int) -> list[list[_Partial]]:
    return [front for state, front in fronts.items() if state.bounds >= least_bounds and front]


def _sweep(
    layers: Sequence[Sequence[Option]],
    least_bounds: int,
    thin: Callable[[list[_Partial]], list[_Partial]],
    budget: float = math.inf,
) -> _Fronts:
    spare = sum(min(map(_cost, options)) for options in layers)
    fronts: _Fronts = {_State(0, False, 0): [_Partial(0, 0.0, ())]}
    for options in reversed(layers):
        spare -= min(map(_cost, options))  # what the layers before take at least
        grown: _Fronts = {}
        for state, front in fronts.items():
            for pick, option in enumerate(options):
                if option.tokens < state.tokens:
                    continue
                after = _State(
                    option.tokens,
                    state.is_normed or option.is_normed,
                    min(least_bounds, state.bounds + option.bounds),
                )
                added = _cost(option) + (_ceil(option.if_normed_s) if state.is_normed else 0)
                grown.setdefault(after, []).extend(
                    _Partial(part.cost + added, part.value + option.value, (pick, *part.picks))
                    for part in front
                    if part.cost + added + spare <= budget
                )
        fronts = {state: thin(states) for state, states in grown.items() if states}
    return fronts


def _pareto(states: Iterable[_Partial]) -> list[_Partial]:
    """Return what is worth more than everything cheaper, the cheapest first."""
    front: list[_Partial] = []
    for state in sorted(states, key=lambda own: (own.cost, -own.value, _late(own))):
        if not front or state.value > front[-1].value + 1e-12:
            front.append(state)
    return front


def _late(state: _Partial) -> tuple[int, ...]:
    return tuple(-pick for pick in state.picks)


def _cost(option: Option) -> int:
    return _ceil(option.seconds)


def _ceil(seconds: float) -> int:
    return math.ceil(round(seconds * 1e9, 3))
