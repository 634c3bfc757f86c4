"""What leaves the intervals of approximations: how often, and whether an answer may be trusted."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from mpcvit.errors import UserError
from mpcvit.lowering.approximations import Watched
from mpcvit.lowering.sites import Function, Functions

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


def count_out_of_range(functions: Functions) -> tuple[dict[str, Function], dict[str, Any]]:
    """Return the same functions, and the counts that a call of them fills.

    A label's count is how many values lay outside of its interval, and of how many.
    """
    counts: dict[str, Any] = {}

    def watched(label: str, function: Any) -> Function:
        if not hasattr(function, "domain"):  # exact, and right everywhere
            return function
        low, high = function.domain

        def note(x: Array) -> None:
            outside = ((x < low) | (x > high)).sum()
            counts[label] = counts.get(label, 0) + jnp.stack([outside, jnp.asarray(x.size)])

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
