"""1 / sqrt(x + eps) over a calibrated interval, by one Chebyshev series."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.polynomial import chebyshev

from mpcvit.errors import UserError
from mpcvit.lowering.approximation import Watched, largest_error

_DEPTHS = range(1, 9)


@dataclass(frozen=True, kw_only=True)
class InverseRoot:
    """1 / sqrt(x + eps) by a Chebyshev series, all of a level's terms in one product.

        y = sum_k coefficients[k] T_k(z),  z = (2 x - low - high) / (high - low)
        T_{m + k} = 2 T_m T_k - T_{m - k},  k = 1 ... m

    A degree of 2^t takes t exchanges. Newton's steps need two for each
    doubling of the digits, a series one, so that here the series is shorter.
    Range: on [low, high] off by at most `max_error` of the value; outside of
    it the error grows without bound.
    Secure cost: t exchanges; as many products as the degree, on one number per row.
    """

    low: float
    high: float
    eps: float
    coefficients: tuple[float, ...]
    max_error: float

    kind: ClassVar[str] = "inverse_root"
    is_relative: ClassVar[bool] = True
    floor: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise UserError("an inverse root's interval must not reach below zero")
        if len(self.coefficients) not in [2**depth + 1 for depth in _DEPTHS]:
            raise UserError("an inverse root has 2^t + 1 coefficients")

    @property
    def domain(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def exchanges(self) -> int:
        return round(math.log2(len(self.coefficients) - 1))

    def centre(self, x: Array) -> Array:
        """z."""
        width = self.high - self.low
        return x * (2 / width) - (self.high + self.low) / width

    def __call__(self, x: Array) -> Array:
        return invert_roots([self], [x])[0]

    def exact(self, x: np.ndarray) -> np.ndarray:
        return 1 / np.sqrt(np.asarray(x, np.float64) + self.eps)

    def slack(self, x: Array) -> list[Array]:
        return [x - self.low, self.high - x]


def invert_roots(
    functions: Sequence[Callable[[Array], Array]], arrays: Sequence[Array]
) -> list[Array]:
    """Several inverse roots, each of its own array, in the exchanges of the longest."""
    if any(isinstance(function, Watched) for function in functions):
        functions = [
            function.noting(x) if isinstance(function, Watched) else function
            for function, x in zip(functions, arrays, strict=True)
        ]
    roots = [function for function in functions if isinstance(function, InverseRoot)]
    if len(roots) < len(functions):  # exact ones, whose exchanges nobody counts
        return [function(x) for function, x in zip(functions, arrays, strict=True)]
    z = jnp.concatenate([root.centre(x.ravel()) for root, x in zip(roots, arrays, strict=True)])
    size = max(len(root.coefficients) for root in roots)
    terms = z[None]
    while len(terms) + 1 < size:
        last, count = terms[-1:], terms.shape[0]
        before = jnp.concatenate([terms[: count - 1][::-1], jnp.ones_like(z)[None]])
        terms = jnp.concatenate([terms, 2 * (last * terms) - before])
    results, start = [], 0
    for root, x in zip(roots, arrays, strict=True):
        weights = np.asarray(root.coefficients[1:], np.float32)[:, None]
        own = terms[: len(weights), start : start + x.size]
        results.append(((own * weights).sum(axis=0) + root.coefficients[0]).reshape(x.shape))
        start += x.size
    return results


@cache
def fit_inverse_root(low: float, high: float, eps: float, tolerance: float) -> InverseRoot:
    """The shortest series that keeps a relative error.

    >>> fit_inverse_root(0.5, 5.0, 1e-5, tolerance=2e-3).exchanges
    3
    """
    if not 0 <= low < high or low + eps <= 0:
        raise UserError(f"1 / sqrt(x) cannot be fitted on [{low:g}, {high:g}]")
    for depth in _DEPTHS:
        degree = 2**depth

        def value(z: np.ndarray) -> np.ndarray:
            return 1 / np.sqrt((low + (high - low) * (z + 1) / 2) + eps)

        coefficients = tuple(float(c) for c in _relative_fit(value, degree))
        draft = InverseRoot(
            low=low, high=high, eps=eps, coefficients=coefficients, max_error=math.inf
        )
        # as much again for the rounding of fixed point and of float32
        error = largest_error(draft) + 2.0**-17
        if error <= tolerance:
            return InverseRoot(
                low=low, high=high, eps=eps, coefficients=coefficients, max_error=error
            )
    raise UserError(f"no series on [{low:g}, {high:g}] is within {tolerance:g} of 1 / sqrt(x)")


def _relative_fit(value: Callable[[np.ndarray], np.ndarray], degree: int) -> np.ndarray:
    """Coefficients with the smallest largest relative error, by Lawson's reweighting."""
    z = np.cos(np.linspace(0, np.pi, 32 * degree + 1))
    exact = value(z)
    rows = chebyshev.chebvander(z, degree) / exact[:, None]
    weights = np.ones_like(z)
    best, least = np.zeros(degree + 1), math.inf
    for _ in range(40):
        root = np.sqrt(weights)
        found = np.linalg.lstsq(rows * root[:, None], root, rcond=None)[0]
        error = np.abs(rows @ found - 1)
        if error.max() < least:
            best, least = found, float(error.max())
        weights = weights * (error + 1e-3 * error.max() + 1e-300)
        weights /= weights.sum()
    return best
