"""exp and THE-X's cube, which span orders of magnitude, by a chain of products."""

import math
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, ClassVar

import jax
import numpy as np
from jax import Array

from mpcvit.errors import UserError
from mpcvit.lowering.approximation import largest_error
from mpcvit.lowering.chain import Chain, fit_chain


class Steep(str, Enum):
    """A function that is never negative, and whose small values hardly matter."""

    EXP = "exp"
    RECTIFIED_CUBE = "rectified_cube"  # relu(x / 2 + 1)^3, THE-X's estimate of exp


# products of the chain and squarings after it, in the order of their exchanges
_SHAPES = {
    Steep.EXP: [(2, 0), (3, 0), *((3, squarings) for squarings in range(1, 10))],
    Steep.RECTIFIED_CUBE: [(2, 0), (3, 0), (4, 0)],
}
_WIDEST = {2: 3.0, 3: 9.0}  # intervals on which a chain of so many products can meet exp
_REACH = 1 / 8  # of the interval's width, below it


@dataclass(frozen=True, kw_only=True)
class SteepChain:
    """A function that is about 1 in the middle of its interval and far more at its end.

        y = chain(z)^(2^squarings),  z = (2 x - low - high) / (high - low)

    exp(x) is the 2^t-th power of exp(x / 2^t), which a short chain meets closely.
    Range: on [low, high] off by at most `max_error (1 + f(x))`: relative where
    the value is large, absolute where it is small, which is what a row of such
    values, whose mean is about one or more, can notice. Down to an eighth of the
    interval below `low` it stays within [-1, 1]; further out it grows like the
    power 2^(products + squarings), and above `high` no faster. With squarings
    it is never negative.
    Secure cost: products + squarings exchanges, and as many products of the array.
    """

    function: Steep
    low: float
    high: float
    left: tuple[tuple[float, ...], ...]
    right: tuple[tuple[float, ...], ...]
    output: tuple[float, ...]
    squarings: int
    max_error: float

    kind: ClassVar[str] = "steep_chain"
    is_relative: ClassVar[bool] = True
    floor: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high or not 0 <= self.squarings <= 16:
            raise UserError("a steep chain needs an interval, and from 0 to 16 squarings")
        self._chain()  # its numbers must fit each other

    def _chain(self) -> Chain:
        return Chain(left=self.left, right=self.right, output=self.output)

    @property
    def domain(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def exchanges(self) -> int:
        return self._chain().products + self.squarings

    def __call__(self, x: Array) -> Array:
        width = self.high - self.low
        y = self._chain()(x * (2 / width) - (self.high + self.low) / width)
        for _ in range(self.squarings):
            y = y * y
        return y

    def exact(self, x: np.ndarray) -> np.ndarray:
        return _exact(self.function, np.asarray(x, np.float64))

    def slack(self, x: Array) -> list[Array]:
        """From where it stays within [-1, 1], a little below the interval."""
        return [x - (self.low - _REACH * (self.high - self.low)), self.high - x]


def rectified_cube(x: Array) -> Array:
    """relu(x / 2 + 1)^3, by a comparison."""
    y = jax.nn.relu(x * 0.5 + 1.0)
    return y * y * y


def _exact(function: Steep, x: Any) -> Any:
    return np.exp(x) if function is Steep.EXP else np.maximum(x / 2 + 1, 0) ** 3


def fit_steep_chain(function: Steep, low: float, high: float, tolerance: float) -> SteepChain:
    """The shortest that keeps its promise.

    >>> fit_steep_chain(Steep.EXP, -4.0, 4.0, 1e-3).exchanges
    3
    """
    for products, squarings in _SHAPES[function]:
        if function is Steep.EXP and (high - low) / 2**squarings > _WIDEST[products]:
            continue
        found = _fit(function, low, high, tolerance, products, squarings)
        if found.max_error <= tolerance and _is_tame(found):
            return found
    raise UserError(f"no chain on [{low:g}, {high:g}] is within {tolerance:g} of {function.value}")


@cache  # here, where it is slow, and where a fit that is too far off is remembered too
def _fit(
    function: Steep, low: float, high: float, tolerance: float, products: int, squarings: int
) -> SteepChain:
    """Fit the root, also a little below; an error of it counts by what it does to the power."""
    below = np.linspace(-1 - 2 * _REACH, -1, 20, endpoint=False)
    z = np.concatenate([below, np.cos(np.linspace(np.pi, 0, 161))])
    value = _exact(function, low + (high - low) * (z + 1) / 2)
    power = 2**squarings
    root = value ** (1 / power)
    if squarings:  # from random starts a strict aim leads to better ends than a loose one
        tolerance = min(tolerance, 5e-4)
    may_be = (value + np.where(z < -1, 0.8, tolerance) * (1 + value)) ** (1 / power)
    chain = fit_chain(z, root, may_be - root, products)
    found = SteepChain(
        function=function,
        low=low,
        high=high,
        squarings=squarings,
        max_error=math.inf,
        **vars(chain),
    )
    # as much again for rounding, in fixed point and in float32
    return replace(found, max_error=largest_error(found) + power * 2.0**-18)


def _is_tame(own: SteepChain) -> bool:
    below = np.linspace(own.low - _REACH * (own.high - own.low), own.low, 101, dtype=np.float32)
    return float(np.abs(own(jax.numpy.asarray(below))).max()) <= 1
