"""GeLU without a comparison: half of x, and an even function by a chain of products."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
from jax import Array
from numpy.polynomial import chebyshev

from mpcvit.artifacts.config import Activation
from mpcvit.errors import UserError
from mpcvit.lowering.approximation import largest_error
from mpcvit.lowering.chain import Chain, fit_chain

EVEN_ACTIVATIONS = (Activation.GELU, Activation.GELU_TANH, Activation.GELU_SIGMOID)


@dataclass(frozen=True, kw_only=True)
class EvenChain:
    """x / 2 plus an even polynomial, in one product a level.

        y = x / 2 + chain(2 x^2 / bound^2 - 1)

    All three forms of GeLU are x / 2 plus an even function; `left`, `right` and
    `output` are the numbers of its `Chain` of p products.
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
    floor: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if self.bound <= 0:
            raise UserError("a chain's bound must be positive")
        self._chain()  # its numbers must fit each other

    def _chain(self) -> Chain:
        return Chain(left=self.left, right=self.right, output=self.output)

    @property
    def domain(self) -> tuple[float, float]:
        return -self.bound, self.bound

    @property
    def exchanges(self) -> int:
        return 1 + self._chain().products

    def __call__(self, x: Array) -> Array:
        return x * 0.5 + self._chain()(x * x * (2 / self.bound**2) - 1)

    def exact(self, x: np.ndarray) -> np.ndarray:
        return _exact(self.activation, np.asarray(x, np.float64))

    def slack(self, x: Array) -> list[Array]:
        """Of both ends at once, by the square that the chain begins with."""
        return [1 - x * x * (1 / self.bound**2)]


def _exact(activation: Activation, x: np.ndarray) -> np.ndarray:
    from scipy.special import erf, expit  # fits alone need it, and no party fits

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
    z = np.cos(np.linspace(0, np.pi, 161))
    x = bound * np.sqrt((z + 1) / 2)
    even = _exact(activation, x) - x / 2
    chain = fit_chain(z, even, np.full_like(z, tolerance), products)
    best = EvenChain(activation=activation, bound=bound, max_error=math.inf, **vars(chain))
    # as much again for rounding, in fixed point and in float32
    return replace(best, max_error=largest_error(best) + bound * 2.0**-18)
