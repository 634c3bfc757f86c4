"""What all cheap stand-ins have in common: a domain, a promise, and a plain form.

A stand-in is a frozen dataclass of numbers that both parties know. Calling it
gives the formula in JAX, and that formula is what SPU runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.errors import UserError


class Approximation(Protocol):
    """A cheap stand-in for one function on one calibrated interval.

    `max_error` is a promise: tests sweep `domain` and hold it to account.
    """

    kind: ClassVar[str]
    is_relative: ClassVar[bool]  # whether the promise is of the relative error
    floor: ClassVar[float]  # which such an error is relative to, beside the value itself

    @property
    def domain(self) -> tuple[float, float]: ...

    @property
    def max_error(self) -> float: ...

    @property
    def exchanges(self) -> int:
        """In a ring that truncates locally, of an array of any size."""
        ...

    def __call__(self, x: Array) -> Array:
        """The formula."""
        ...

    def exact(self, x: np.ndarray) -> np.ndarray:
        """What it stands for, in float64."""
        ...

    def slack(self, x: Array) -> list[Array]:
        """What is negative where the formula can no longer be trusted."""
        ...


@dataclass(frozen=True)
class Watched:
    """A stand-in that tells of everything that it is given."""

    stand_in: Any
    note: Callable[[Array], None]

    def __call__(self, x: Array) -> Array:
        return self.noting(x)(x)

    def noting(self, x: Array) -> Any:
        """Tell of an array, and give the stand-in."""
        self.note(x)
        return self.stand_in


def largest_error(approximation: Approximation, points: int = 10_001) -> float:
    """The largest error over a sweep of the domain, dense at both ends."""
    low, high = approximation.domain
    x = low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, points))) / 2
    exact = approximation.exact(x)
    found = np.asarray(approximation(jnp.asarray(x, jnp.float32)), np.float64)
    scale = np.abs(exact) + approximation.floor if approximation.is_relative else 1.0
    return float(np.max(np.abs(found - exact) / scale))


Number = TypeVar("Number", int, float)


def read_number(value: Any, where: str, kind: type[Number]) -> Number:
    """A finite number out of JSON."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not np.isfinite(value) or kind(value) != value:
        raise UserError(f"{where} must be a number, not {value!r}")
    return kind(value)


def read_numbers(value: Any, where: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where} must be a list of numbers")
    return tuple(read_number(entry, where, float) for entry in value)
