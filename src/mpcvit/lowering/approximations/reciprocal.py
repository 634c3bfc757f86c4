"""1 / x over a calibrated interval, in as few exchanges as its degree allows."""

from dataclasses import dataclass
from itertools import pairwise

import jax.numpy as jnp
from jax import Array

from mpcvit.codec import tagged
from mpcvit.errors import UserError
from mpcvit.lowering.approximations.base import OnInterval

_BEYOND_FLOAT32 = 1e20  # where an error of 1 / t_N is none


@tagged("reciprocal")
@dataclass(frozen=True, kw_only=True)
class Reciprocal(OnInterval):
    """A polynomial close to 1 / x, by Chebyshev's own Goldschmidt iteration.

        z = (low + high - 2 x) / (high - low),  c_1 = z,  y_1 = 2 / (low + high)
        c_2N = 2 c_N^2 - 1
        y_2N = y_N 2 (t_N + c_N) t_N / t_2N,    t_N = T_N(z at x = 0)

    `y_N` is the polynomial of degree N - 1 whose relative error `c_N / t_N` is the
    smallest that any of that degree has on the interval. Both lines of a step
    are one stacked product, so N = 2^steps takes `steps` exchanges.
    Range: on [low, high] off by at most 1 / t_N of 1 / x. Below `low` the error
    only grows towards zero: x y(x) falls from 1 to 0 with x and never exceeds
    1 + 1 / t_N, so the quotient fades out. Above `high` it grows without bound.
    Secure cost: `steps` exchanges and about as many products of the array by two.
    """

    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise UserError("a reciprocal's interval must lie above zero")
        if not 2 <= self.steps <= 16:
            raise UserError("a reciprocal takes from 2 to 16 steps")

    @property
    def exchanges(self) -> int:
        return self.steps

    @property
    def max_error(self) -> float:
        """The polynomial's error and room for rounding: z resolves `low` to high / low parts."""
        return 1 / self._peaks()[-1] + 2.0**-16 + 2.0**-23 * self.high / self.low

    def _peaks(self) -> list[float]:
        """Return t_1, t_2, t_4, ... up to t_N."""
        peaks = [(self.high + self.low) / (self.high - self.low)]
        for _ in range(self.steps):
            peaks.append(min(2 * peaks[-1] ** 2 - 1, _BEYOND_FLOAT32))
        return peaks

    def __call__(self, x: Array) -> Array:
        peaks, width = self._peaks(), self.high - self.low
        c = (self.high + self.low) / width - x * (2 / width)
        y = None
        for index, (peak, next_peak) in enumerate(pairwise(peaks)):
            factor = (2 * peak * peak / next_peak) + c * (2 * peak / next_peak)
            if y is None:
                y, c = factor * (2 / (self.high + self.low)), 2 * (c * c) - 1
            elif index + 1 < self.steps:
                products = jnp.stack([y, c]) * jnp.stack([factor, c])
                y, c = products[0], 2 * products[1] - 1
            else:
                y = y * factor
        assert y is not None
        return y
