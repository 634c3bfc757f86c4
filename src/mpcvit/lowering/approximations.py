"""Approximations: polynomials in place of 1 / x, 1 / sqrt(x), GeLU, exp and THE-X's cube.

An approximation is a frozen dataclass of numbers that both parties know. A call
computes the formula in JAX, and that formula is what SPU runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.config import Activation
from mpcvit.codec import tagged
from mpcvit.errors import UserError

GELU_FORMS = (Activation.GELU, Activation.GELU_TANH, Activation.GELU_SIGMOID)
_BEYOND_FLOAT32 = 1e20  # where an error of 1 / t_N is none
DEPTHS = range(1, 9)  # of an inverse root's series
REACH = 1 / 8  # of a steep function's interval, below it


class SteepFunction(str, Enum):
    """A function that is never negative, and whose small values hardly matter."""

    EXP = "exp"
    RECTIFIED_CUBE = "rectified_cube"  # relu(x / 2 + 1)^3, THE-X's estimate of exp


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


@dataclass(frozen=True, kw_only=True)
class ProductChain:
    """A polynomial in z by products of sums of earlier terms.

        f_0 = 1,  f_1 = z,  f_2 = z^2
        f_k = (sum_j left[k][j] f_j) (sum_j right[k][j] f_j)
        y = sum_k output[k] f_k

    A chain of p products reaches degree 2^p: four come close to the best
    polynomial of degree 15, which by its powers would take eight products.
    Secure cost: p exchanges and as many products of the array.
    """

    left: tuple[tuple[float, ...], ...]
    right: tuple[tuple[float, ...], ...]
    output: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = [3 + index for index in range(len(self.left))]
        if not (
            [len(row) for row in self.left] == sizes
            and [len(row) for row in self.right] == sizes
            and len(self.output) == 3 + len(self.left)
        ):
            raise UserError("the numbers of a chain of products do not fit each other")

    @property
    def products(self) -> int:
        return 1 + len(self.left)

    def evaluate(self, z: Any) -> Any:
        """Return the polynomial of a JAX or a NumPy array."""
        return _combine(self.terms(z), self.output)

    def terms(self, z: Any) -> list[Any]:
        """Return f_1, f_2, ..."""
        terms = [z, z * z]
        for left, right in zip(self.left, self.right, strict=True):
            terms.append(_combine(terms, left) * _combine(terms, right))
        return terms


def _combine(terms: list[Any], weights: tuple[float, ...]) -> Any:
    """Return weights[0] + sum_k weights[k + 1] terms[k]."""
    total: Any = weights[0]
    for term, weight in zip(terms, weights[1:], strict=True):
        if weight:
            total = total + (term if weight == 1 else term * weight)
    return total


@tagged("gelu_polynomial")
@dataclass(frozen=True, kw_only=True)
class GeluPolynomial(ProductChain):
    """A polynomial close to GeLU: x / 2 plus an even polynomial, without a comparison.

        y = x / 2 + chain(2 x^2 / bound^2 - 1)

    All three forms of GeLU are x / 2 plus an even function.
    Range: on [-bound, bound] off by at most `max_error`; beyond, it grows with
    the degree, as any polynomial does.
    Secure cost: p + 1 exchanges and as many products of the array; no comparison.
    """

    activation: Activation
    bound: float
    max_error: float

    is_relative: ClassVar[bool] = False
    floor: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bound <= 0:
            raise UserError("the bound of a GeLU polynomial must be positive")

    @property
    def domain(self) -> tuple[float, float]:
        return -self.bound, self.bound

    @property
    def exchanges(self) -> int:
        return 1 + self.products

    def __call__(self, x: Array) -> Array:
        return x * 0.5 + self.evaluate(x * x * (2 / self.bound**2) - 1)

    def slack(self, x: Array) -> list[Array]:
        """Return the slack of both ends at once, by the square that the chain begins with."""
        return [1 - x * x * (1 / self.bound**2)]


@tagged("exponential_polynomial")
@dataclass(frozen=True, kw_only=True)
class ExponentialPolynomial(ProductChain, OnInterval):
    """A polynomial close to a steep function, which is far more than 1 at its interval's end.

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

    function: SteepFunction
    squarings: int
    max_error: float

    floor: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high or not 0 <= self.squarings <= 16:
            raise UserError("a steep function needs an interval, and from 0 to 16 squarings")

    @property
    def exchanges(self) -> int:
        return self.products + self.squarings

    def __call__(self, x: Array) -> Array:
        y = self.evaluate(self.unit(x))
        for _ in range(self.squarings):
            y = y * y
        return y

    def slack(self, x: Array) -> list[Array]:
        """Return the slack from where it stays within [-1, 1], a little below the interval."""
        return [x - (self.low - REACH * (self.high - self.low)), self.high - x]


def rectified_cube(x: Array) -> Array:
    """Return relu(x / 2 + 1)^3, by a comparison."""
    y = jax.nn.relu(x * 0.5 + 1.0)
    return y * y * y


@tagged("inverse_root")
@dataclass(frozen=True, kw_only=True)
class InverseRoot(OnInterval):
    """A Chebyshev series close to 1 / sqrt(x + eps), all terms of a level in one product.

        y = sum_k coefficients[k] T_k(z),  z = (2 x - low - high) / (high - low)
        T_{m + k} = 2 T_m T_k - T_{m - k},  k = 1 ... m

    A degree of 2^t takes t exchanges. Newton's steps need two for each
    doubling of the digits, a series one, so that here the series is shorter.
    Range: on [low, high] off by at most `max_error` of the value; outside of
    it the error grows without bound.
    Secure cost: t exchanges; as many products as the degree, on one number per row.
    """

    eps: float
    coefficients: tuple[float, ...]
    max_error: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise UserError("an inverse root's interval must not reach below zero")
        if len(self.coefficients) not in [2**depth + 1 for depth in DEPTHS]:
            raise UserError("an inverse root has 2^t + 1 coefficients")

    @property
    def exchanges(self) -> int:
        return round(math.log2(len(self.coefficients) - 1))

    def __call__(self, x: Array) -> Array:
        return invert_roots([self], [x])[0]


def invert_roots(roots: Sequence[InverseRoot], arrays: Sequence[Array]) -> list[Array]:
    """Return several inverse roots, each of its own array, in the exchanges of the longest."""
    z = jnp.concatenate([root.unit(x.ravel()) for root, x in zip(roots, arrays, strict=True)])
    size = max(len(root.coefficients) for root in roots)
    terms = z[None]
    while len(terms) + 1 < size:
        last, count = terms[-1:], terms.shape[0]
        before = jnp.concatenate([terms[: count - 1][::-1], jnp.ones_like(z)[None]])
        terms = jnp.concatenate([terms, 2 * (last * terms) - before])
    results, start = [], 0
    for root, x in zip(roots, arrays, strict=True):
        weights = np.asarray(root.coefficients[1:], np.float32)[:, None]
        powers = terms[: len(weights), start : start + x.size]
        results.append(((powers * weights).sum(axis=0) + root.coefficients[0]).reshape(x.shape))
        start += x.size
    return results


Approximation = InverseRoot | Reciprocal | GeluPolynomial | ExponentialPolynomial
"""An approximation of one function on one calibrated interval.

`max_error` is a promise: tests sweep `domain` and compare.
"""
