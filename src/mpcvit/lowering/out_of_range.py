"""What watches functions: the ranges that they meet, and what leaves their intervals."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.errors import UserError
from mpcvit.lowering.approximations import InverseRoot, invert_roots
from mpcvit.lowering.sites import Function, Functions, Range

_LOW_SHARE = 1e-4  # of the rows whose denominators may lie below a reciprocal's interval
_LENGTHS = ("query_length", "product_length")  # short rows are scaled like the shortest known


@dataclass(frozen=True, kw_only=True)
class Trust:
    """The conditions under which an answer may be trusted.

    `bound` is the largest magnitude of a logit, or 0 if none is known. A lead below
    `doubt` may be another class's in the network itself. With `guard`, the answer also
    says if some value left its interval. Labels in `assured` cannot leave their
    intervals before another does.
    """

    bound: float = 0.0
    doubt: float = 0.0
    guard: bool = False
    assured: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.bound < math.inf and 0 <= self.doubt < math.inf):
            raise UserError("neither a bound of logits nor a doubt can be negative")

    def can_leave(self, label: str, function: Function) -> bool:
        """Return whether values at a label can leave an interval before another label's do."""
        return hasattr(function, "domain") and label not in self.assured


@dataclass(frozen=True)
class Watched:
    """An approximation whose every array is passed to `note` first."""

    approximation: Any
    note: Callable[[Array], None]

    def __call__(self, x: Array) -> Array:
        self.note(x)
        return self.approximation(x)


def invert_watched(functions: Sequence[Function], arrays: Sequence[Array]) -> list[Array]:
    """Return inverse roots of several arrays together, after each array was noted."""
    bare = []
    for function, x in zip(functions, arrays, strict=True):
        if isinstance(function, Watched):
            function.note(x)
        bare.append(function.approximation if isinstance(function, Watched) else function)
    roots = [function for function in bare if isinstance(function, InverseRoot)]
    if len(roots) < len(bare):  # exact ones, whose exchanges nobody counts
        return [function(x) for function, x in zip(bare, arrays, strict=True)]
    return invert_roots(roots, arrays)


@dataclass
class SeenRanges:
    """The inputs of watched functions, by label: arrays of one call, and their ranges so far."""

    arrays: dict[str, list[Array]] = field(default_factory=dict)
    shares: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def take(self) -> dict[str, list[Array]]:
        """Return the arrays since the last call of this."""
        arrays, self.arrays = self.arrays, {}
        return arrays

    def note(self, arrays: dict[str, list[np.ndarray]]) -> None:
        """Remember the ranges of arrays."""
        for label, met in arrays.items():
            self.shares.setdefault(label, []).extend(
                np.quantile(values, [0.0, 1.0, _LOW_SHARE]) for values in met
            )

    def ranges(self) -> dict[str, Range]:
        """Return the range of everything that each function was given."""
        return {
            label: Range(
                low=float(min(low for low, _, _ in shares)),
                high=float(max(high for _, high, _ in shares)),
                low_share=float(np.median([share for _, _, share in shares])),
            )
            for label, shares in self.shares.items()
        }


def watch_ranges(functions: Functions) -> tuple[dict[str, Function], SeenRanges]:
    """Return the same functions, and what they are given."""
    seen = SeenRanges()

    def watched(label: str, function: Function) -> Function:
        return Watched(function, lambda x: seen.arrays.setdefault(label, []).append(x))

    return {label: watched(label, function) for label, function in functions.items()}, seen


def count_out_of_range(functions: Functions) -> tuple[dict[str, Function], dict[str, Any]]:
    """Return the same functions, and the counts that a call of them fills.

    A label's count has a row for each image: how many values lay outside of its interval,
    and of how many.
    """
    counts: dict[str, Any] = {}

    def watched(label: str, function: Any) -> Function:
        if not hasattr(function, "domain"):  # exact, and right everywhere
            return function
        low, high = function.domain

        def note(x: Array) -> None:
            outside = ((x < low) | (x > high)).reshape(len(x), -1)
            met = jnp.full(len(x), outside.shape[1])
            counts[label] = counts.get(label, 0) + jnp.stack([outside.sum(axis=1), met], axis=1)

        return Watched(function, note)

    return {label: watched(label, function) for label, function in functions.items()}, counts


def guard(functions: Functions, trust: Trust) -> tuple[dict[str, Function], list[Array]]:
    """Return the same functions, and a list that fills with what must not be negative.

    An entry has a row for each image.
    """
    slack: list[Array] = []

    def guarded(label: str, function: Any) -> Function:
        if not trust.can_leave(label, function):
            return function

        def note(x: Array) -> None:
            parts = function.slack(x)
            parts = parts[-1:] if label.endswith(_LENGTHS) else parts
            slack.extend(part.reshape(part.shape[0], -1) for part in parts)

        return Watched(function, note)

    return {label: guarded(label, function) for label, function in functions.items()}, slack


def least_slack(slack: list[Array], images: int) -> Array:
    """Return the least of each image's; what is no number has left every interval."""
    nothing = jnp.full((images, 1), jnp.inf)
    least = jnp.concatenate([nothing, *slack], axis=1).min(axis=1)
    return jnp.where(jnp.isnan(least), -jnp.inf, least)


def watch_together(*several: Functions) -> dict[str, Function]:
    """Return the functions that several dictionaries watch, each watched by all of them."""

    def watched(label: str) -> Function:
        own = [functions[label] for functions in several]
        watching = [function for function in own if isinstance(function, Watched)]
        if not watching:
            return own[0]

        def note(x: Array) -> None:
            for function in watching:
                function.note(x)

        return Watched(watching[0].approximation, note)

    return {label: watched(label) for label in several[0]}
