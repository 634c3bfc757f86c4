"""What all approximations share: an interval, an error, and a formula.

An approximation is a frozen dataclass of numbers that both parties know. A call
computes the formula in JAX, and that formula is what SPU runs.
"""

from dataclasses import dataclass
from typing import ClassVar

from jax import Array


@dataclass(frozen=True, kw_only=True)
class OnInterval:
    """A formula that holds on one interval."""

    low: float
    high: float

    is_relative: ClassVar[bool] = True  # whether `max_error` is a relative error
    floor: ClassVar[float] = 0.0  # added to the value that a relative error is divided by

    @property
    def domain(self) -> tuple[float, float]:
        return self.low, self.high

    def unit(self, x: Array) -> Array:
        """Map `x` from [low, high] to [-1, 1]."""
        width = self.high - self.low
        return x * (2 / width) - (self.high + self.low) / width

    def slack(self, x: Array) -> list[Array]:
        """Return arrays that are negative where the formula can no longer be trusted."""
        return [x - self.low, self.high - x]
