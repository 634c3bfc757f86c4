"""GeLU, exp and THE-X's cube, by a polynomial that takes one exchange for each product."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import jax
from jax import Array

from mpcvit.artifacts.config import Activation
from mpcvit.codec import tagged
from mpcvit.errors import UserError
from mpcvit.lowering.approximations.base import OnInterval

GELU_FORMS = (Activation.GELU, Activation.GELU_TANH, Activation.GELU_SIGMOID)
REACH = 1 / 8  # of a steep function's interval, below it


class SteepFunction(str, Enum):
    """A function that is never negative, and whose small values hardly matter."""

    EXP = "exp"
    RECTIFIED_CUBE = "rectified_cube"  # relu(x / 2 + 1)^3, THE-X's estimate of exp


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
