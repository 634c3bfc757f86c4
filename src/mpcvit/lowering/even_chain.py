"""GeLU without a comparison: half of x, and an even function by a chain of products."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from jax import Array
from numpy.polynomial import chebyshev
from scipy.optimize import least_squares
from scipy.special import erf, expit

from mpcvit.config import Activation
from mpcvit.errors import UserError
from mpcvit.lowering.approximation import largest_error

EVEN_ACTIVATIONS = (Activation.GELU, Activation.GELU_TANH, Activation.GELU_SIGMOID)


@dataclass(frozen=True, kw_only=True)
class EvenChain:
    """x / 2 plus an even polynomial, in one product a level.

        z = 2 x^2 / bound^2 - 1
        f_0 = 1,  f_1 = z,  f_2 = z^2
        f_k = (sum_j left[k][j] f_j) (sum_j right[k][j] f_j)
        y = x / 2 + sum_k output[k] f_k

    All three forms of GeLU are x / 2 plus an even function. A chain of p products
    after x^2 reaches degree 2^p in x^2, and its numbers are fitted as a whole:
    four come close to the best polynomial of degree 15, which by its powers
    would take eight products.
    Range: on [-bound, bound] off by at most `max_error`; beyond, it grows with
    the degree, as any polynomial does.
    Secure cost: p + 1 exchanges and as many products of the array; no comparison.
    """

    activation: Activation
    bound: float
    left: tuple[tuple[float, ...], ...]
    right: tuple[tuple[float, ...], ...]
    output: tuple[float, ...]
    max_error: float

    kind: ClassVar[str] = "even_chain"
    is_relative: ClassVar[bool] = False

    def __post_init__(self) -> None:
        sizes = [3 + index for index in range(len(self.left))]
        if not (
            self.bound > 0
            and [len(row) for row in self.left] == sizes
            and [len(row) for row in self.right] == sizes
            and len(self.output) == 3 + len(self.left)
        ):
            raise UserError("the numbers of a chain of products do not fit each other")

    @property
    def domain(self) -> tuple[float, float]:
        return -self.bound, self.bound

    @property
    def exchanges(self) -> int:
        return 2 + len(self.left)

    def __call__(self, x: Array) -> Array:
        z = x * x * (2 / self.bound**2) - 1
        terms = [z, z * z]
        for left, right in zip(self.left, self.right, strict=True):
            terms.append(_combine(terms, left) * _combine(terms, right))
        return _combine([x, *terms], (self.output[0], 0.5, *self.output[1:]))

    def exact(self, x: np.ndarray) -> np.ndarray:
        return _exact(self.activation, np.asarray(x, np.float64))


def _combine(terms: list[Any], weights: tuple[float, ...]) -> Any:
    """weights[0] + sum_k weights[k + 1] terms[k]."""
    total: Any = weights[0]
    for term, weight in zip(terms, weights[1:], strict=True):
        total = total + (term if weight == 1 else term * weight)
    return total


def _exact(activation: Activation, x: np.ndarray) -> np.ndarray:
    match activation:
        case Activation.GELU:
            return x * (1 + erf(x / math.sqrt(2))) / 2
        case Activation.GELU_TANH:
            return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case Activation.GELU_SIGMOID:
            return x * expit(1.702 * x)
        case _:
            raise UserError(f"{activation.value} is no even function beside x / 2")


@cache
def fit_even_chain(activation: Activation, bound: float, tolerance: float) -> EvenChain:
    """The shortest chain that keeps an absolute error on [-bound, bound].

    >>> fit_even_chain(Activation.GELU, 4.0, 1e-3).exchanges
    4
    """
    for products in (2, 3, 4, 5):
        if _least_error(activation, bound, 2**products) > tolerance:
            continue  # no polynomial of this degree could
        best = _fit(activation, bound, products, tolerance)
        if best.max_error <= tolerance:
            return best
    raise UserError(
        f"no chain on [-{bound:g}, {bound:g}] is within {tolerance:g} of {activation.value}"
    )


def _least_error(activation: Activation, bound: float, degree: int) -> float:
    """Nearly the smallest largest error of a polynomial in x^2: that of interpolation, over two.

    At Chebyshev's points of these degrees interpolation loses less than that factor
    in the mean, and a fit that is tried in vain costs seconds and nothing else.
    """
    x = bound * np.sqrt((np.cos(np.linspace(0, np.pi, 401)) + 1) / 2)

    def even(z: np.ndarray) -> np.ndarray:
        x = bound * np.sqrt((z + 1) / 2)
        return _exact(activation, x) - x / 2

    series = chebyshev.chebinterpolate(even, degree)
    z = 2 * x**2 / bound**2 - 1
    return float(np.abs(chebyshev.chebval(z, series) - even(z)).max()) / 2


def _fit(activation: Activation, bound: float, products: int, tolerance: float) -> EvenChain:
    """Gauss-Newton from random starts; the outer sum is solved for in every step."""
    z = np.cos(np.linspace(0, np.pi, 161))
    x = bound * np.sqrt((z + 1) / 2)
    even = _exact(activation, x) - x / 2
    sizes = [3 + index for index in range(products - 1)]
    rng = np.random.default_rng(0)
    best: EvenChain | None = None
    for _ in range(6):
        numbers = 0.5 * rng.standard_normal(sum(2 * size - 1 for size in sizes))
        weights = np.ones_like(z)
        for _ in range(3):

            def residual(numbers: np.ndarray, weights: np.ndarray = weights) -> np.ndarray:
                terms = _terms(z, *_split(numbers, sizes))
                output = np.linalg.lstsq(terms * weights[:, None], even * weights, rcond=None)[0]
                return weights * (terms @ output - even)

            numbers = least_squares(residual, numbers, max_nfev=60).x
            left, right = _split(numbers, sizes)
            terms = _terms(z, left, right)
            output = np.linalg.lstsq(terms * weights[:, None], even * weights, rcond=None)[0]
            error = np.abs(terms @ output - even)
            chain = EvenChain(
                activation=activation,
                bound=bound,
                left=left,
                right=right,
                output=tuple(float(value) for value in output),
                max_error=float(error.max()),
            )
            if best is None or chain.max_error < best.max_error:
                best = chain
            weights = weights * np.sqrt(error / error.max() + 0.05)
            weights /= weights.mean()
        if best is not None and best.max_error <= 0.8 * tolerance:
            break
    assert best is not None
    # as much again for rounding, in fixed point and in float32
    measured = largest_error(best) + bound * 2.0**-18
    return EvenChain(**{**vars(best), "max_error": measured})


def _split(
    numbers: np.ndarray, sizes: list[int]
) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    """Left factors end in a 1, as their scale is free; right ones are given whole."""
    left, right, place = [], [], 0
    for size in sizes:
        left.append((*(float(value) for value in numbers[place : place + size - 1]), 1.0))
        place += size - 1
        right.append(tuple(float(value) for value in numbers[place : place + size]))
        place += size
    return tuple(left), tuple(right)


def _terms(
    z: np.ndarray,
    left: tuple[tuple[float, ...], ...],
    right: tuple[tuple[float, ...], ...],
) -> np.ndarray:
    terms = [z, z * z]
    for one, other in zip(left, right, strict=True):
        terms.append(_combine(terms, one) * _combine(terms, other))
    return np.stack([np.ones_like(z), *terms], axis=1)
