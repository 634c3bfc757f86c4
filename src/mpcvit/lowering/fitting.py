"""How approximations are fitted. SciPy does it, and a party never imports this module."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erf, expit

from mpcvit.artifacts.config import Activation
from mpcvit.errors import UserError
from mpcvit.lowering.approximations import (
    DEPTHS,
    REACH,
    Approximation,
    ExponentialPolynomial,
    GeluPolynomial,
    InverseRoot,
    ProductChain,
    Reciprocal,
    SteepFunction,
)
from mpcvit.lowering.sites import Target

_STARTS, _LEAST_STARTS, _REWEIGHTINGS = 24, 8, 3  # of a chain's fit
_STEPS, _SHORTER = 60, 12  # of a descent, and how often a step is shortened
_LEAST_GAIN = 1e-8  # of a step, in parts of the cost
_RIDGE = 1e-10  # cost of the numbers of a chain, in parts of the square of the target
_CLOSE_ENOUGH = 0.8  # of what is allowed, with which a fit ends
_CLEARLY = 0.99  # times the least error: what a later end must reach to be taken
# products of the chain and squarings after it, in the order of their exchanges
_SHAPES = {
    SteepFunction.EXP: [(2, 0), (3, 0), *((3, squarings) for squarings in range(1, 10))],
    SteepFunction.RECTIFIED_CUBE: [(2, 0), (3, 0), (4, 0)],
}
_WIDEST = {2: 3.0, 3: 9.0}  # by the products of a chain, the widest interval for exp


def fit(target: Target, tolerance: float) -> Approximation:
    """Return the shortest approximation of a target within a tolerance."""
    fits: dict[type, Callable[..., Approximation]] = {
        Reciprocal: fit_reciprocal,
        InverseRoot: fit_inverse_root,
        GeluPolynomial: fit_gelu,
        ExponentialPolynomial: fit_steep,
    }
    return fits[target.approximation](*target.arguments, tolerance)


def exact(approximation: Approximation, x: np.ndarray) -> np.ndarray:
    """Return the approximated function itself, in float64."""
    x = np.asarray(x, np.float64)
    match approximation:
        case Reciprocal():
            return 1 / x
        case InverseRoot():
            return 1 / np.sqrt(x + approximation.eps)
        case GeluPolynomial():
            return _gelu(approximation.activation, x)
        case ExponentialPolynomial():
            return _steep(approximation.function, x)


def largest_error(approximation: Approximation, points: int = 10_001) -> float:
    """Return the largest error over a sweep of the domain, dense at both ends."""
    low, high = approximation.domain
    x = low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, points))) / 2
    wanted = exact(approximation, x)
    computed = np.asarray(approximation(jnp.asarray(x, jnp.float32)), np.float64)
    scale = np.abs(wanted) + approximation.floor if approximation.is_relative else 1.0
    return float(np.max(np.abs(computed - wanted) / scale))


def fit_reciprocal(low: float, high: float, tolerance: float) -> Reciprocal:
    """Return the shortest one that keeps a relative error.

    >>> fit_reciprocal(1.0, 100.0, 1e-3).steps
    6
    """
    for steps in range(2, 17):
        candidate = Reciprocal(low=low, high=high, steps=steps)
        if candidate.max_error <= tolerance:
            return candidate
    raise UserError(f"no reciprocal on [{low:g}, {high:g}] is within {tolerance:g}")


@cache
def fit_inverse_root(low: float, high: float, eps: float, tolerance: float) -> InverseRoot:
    """Return the shortest series that keeps a relative error.

    >>> fit_inverse_root(0.5, 5.0, 1e-5, tolerance=2e-3).exchanges
    3
    """
    if not 0 <= low < high or low + eps <= 0:
        raise UserError(f"1 / sqrt(x) cannot be fitted on [{low:g}, {high:g}]")
    for depth in DEPTHS:

        def value(z: np.ndarray) -> np.ndarray:
            return 1 / np.sqrt((low + (high - low) * (z + 1) / 2) + eps)

        coefficients = tuple(float(c) for c in _fit_series(value, 2**depth))
        draft = InverseRoot(
            low=low, high=high, eps=eps, coefficients=coefficients, max_error=math.inf
        )
        # as much again for the rounding of fixed point and of float32
        error = largest_error(draft) + 2.0**-17
        if error <= tolerance:
            return replace(draft, max_error=error)
    raise UserError(f"no series on [{low:g}, {high:g}] is within {tolerance:g} of 1 / sqrt(x)")


def _fit_series(value: Callable[[np.ndarray], np.ndarray], degree: int) -> np.ndarray:
    """Return coefficients with the smallest largest relative error, by Lawson's reweighting."""
    z = np.cos(np.linspace(0, np.pi, 32 * degree + 1))
    wanted = value(z)
    rows = chebyshev.chebvander(z, degree) / wanted[:, None]
    weights = np.ones_like(z)
    best, least = np.zeros(degree + 1), math.inf
    for _ in range(40):
        root = np.sqrt(weights)
        candidate = np.linalg.lstsq(rows * root[:, None], root, rcond=None)[0]
        error = np.abs(rows @ candidate - 1)
        if error.max() < least:
            best, least = candidate, float(error.max())
        weights = weights * (error + 1e-3 * error.max() + 1e-300)
        weights /= weights.sum()
    return best


@cache
def fit_gelu(activation: Activation, bound: float, tolerance: float) -> GeluPolynomial:
    """Return the shortest polynomial that keeps an absolute error on [-bound, bound].

    >>> fit_gelu(Activation.GELU, 4.0, 1e-3).exchanges
    4
    """
    for products in (2, 3, 4, 5):
        if _least_gelu_error(activation, bound, 2**products) > tolerance:
            continue  # no polynomial of this degree could
        z = np.cos(np.linspace(0, np.pi, 161))
        x = bound * np.sqrt((z + 1) / 2)
        even = _gelu(activation, x) - x / 2
        chain = fit_chain(z, even, np.full_like(z, tolerance), products)
        draft = GeluPolynomial(
            activation=activation, bound=bound, max_error=math.inf, **vars(chain)
        )
        # as much again for rounding, in fixed point and in float32
        error = largest_error(draft) + bound * 2.0**-18
        if error <= tolerance:
            return replace(draft, max_error=error)
    raise UserError(
        f"no polynomial on [-{bound:g}, {bound:g}] is within {tolerance:g} of {activation.value}"
    )


def _gelu(activation: Activation, x: np.ndarray) -> np.ndarray:
    match activation:
        case Activation.GELU:
            return x * (1 + erf(x / math.sqrt(2))) / 2
        case Activation.GELU_TANH:
            return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case Activation.GELU_SIGMOID:
            return x * expit(1.702 * x)
        case _:
            raise UserError(f"{activation.value} is no even function beside x / 2")


def _least_gelu_error(activation: Activation, bound: float, degree: int) -> float:
    """Return about the smallest largest error of a polynomial in x^2: half of interpolation's.

    At Chebyshev's points of these degrees interpolation loses less than that factor
    in the mean, and a fit that is tried in vain costs seconds and nothing else.
    """
    x = bound * np.sqrt((np.cos(np.linspace(0, np.pi, 401)) + 1) / 2)

    def even(z: np.ndarray) -> np.ndarray:
        x = bound * np.sqrt((z + 1) / 2)
        return _gelu(activation, x) - x / 2

    series = chebyshev.chebinterpolate(even, degree)
    z = 2 * x**2 / bound**2 - 1
    return float(np.abs(chebyshev.chebval(z, series) - even(z)).max()) / 2


def fit_steep(
    function: SteepFunction, low: float, high: float, tolerance: float
) -> ExponentialPolynomial:
    """Return the shortest one that keeps its error, and stays small a little below `low`.

    >>> fit_steep(SteepFunction.EXP, -4.0, 4.0, 1e-3).exchanges
    3
    """
    for products, squarings in _SHAPES[function]:
        width = (high - low) / 2**squarings
        if function is SteepFunction.EXP and width > _WIDEST[products]:
            continue
        candidate = _fit_steep(function, low, high, tolerance, products, squarings)
        if candidate.max_error <= tolerance and _stays_small(candidate):
            return candidate
    raise UserError(
        f"no polynomial on [{low:g}, {high:g}] is within {tolerance:g} of {function.value}"
    )


@cache  # here, where it is slow, and where a fit that is too far off is remembered too
def _fit_steep(
    function: SteepFunction,
    low: float,
    high: float,
    tolerance: float,
    products: int,
    squarings: int,
) -> ExponentialPolynomial:
    """Fit the root, also a little below; an error of it counts by its effect on the power."""
    below = np.linspace(-1 - 2 * REACH, -1, 20, endpoint=False)
    z = np.concatenate([below, np.cos(np.linspace(np.pi, 0, 161))])
    value = _steep(function, low + (high - low) * (z + 1) / 2)
    power = 2**squarings
    root = value ** (1 / power)
    if squarings:  # a strict aim leads to better ends than a loose one
        tolerance = min(tolerance, 5e-4)
    may_be = (value + np.where(z < -1, 0.8, tolerance) * (1 + value)) ** (1 / power)
    draft = ExponentialPolynomial(
        function=function,
        low=low,
        high=high,
        squarings=squarings,
        max_error=math.inf,
        **vars(fit_chain(z, root, may_be - root, products)),
    )
    # as much again for rounding, in fixed point and in float32
    return replace(draft, max_error=largest_error(draft) + power * 2.0**-18)


def _steep(function: SteepFunction, x: np.ndarray) -> np.ndarray:
    return np.exp(x) if function is SteepFunction.EXP else np.maximum(x / 2 + 1, 0) ** 3


def _stays_small(candidate: ExponentialPolynomial) -> bool:
    low, high = candidate.domain
    below = np.linspace(low - REACH * (high - low), low, 101, dtype=np.float32)
    return float(np.abs(candidate(jnp.asarray(below))).max()) <= 1


def fit_chain(
    z: np.ndarray, target: np.ndarray, allowed: np.ndarray, products: int
) -> ProductChain:
    """Return a chain near `target` at the points `z`; errors count in units of `allowed`.

    Descends from several starts, always the same ones. Every inner number matters, and a
    ridge keeps it small. So a start leads to the same end on every processor, up to
    rounding, and a later end is taken only if it is clearly closer.
    """
    starts = np.random.default_rng(0).standard_normal((_STARTS, len(_places(products))))
    unit = 1 / allowed
    unit /= unit.mean()
    best, least = None, np.inf
    for start, numbers in enumerate(starts, 1):
        weights = unit
        for _ in range(_REWEIGHTINGS):
            numbers = _descend(numbers, products, z, target, weights)
            chain = _solve_chain(numbers, products, z, target, weights).chain
            error = np.abs(chain.evaluate(z) - target)
            if (largest := float((error / allowed).max())) < _CLEARLY * least:
                best, least = chain, largest
            error = error * unit
            weights = weights * np.sqrt(error / error.max() + 0.05)
            weights /= weights.mean()
        if least <= _CLOSE_ENOUGH and start >= _LEAST_STARTS:
            break
    assert best is not None
    return best


def _places(products: int) -> list[tuple[int, int, int]]:
    """Return product, factor and term of each inner number that a fit chooses.

    Other numbers would only repeat what these can do. Both factors have the latest term
    once, and no constant, as later sums scale and shift; one alone has z:

        f_3 = (f_2 + a z) f_2,  f_4 = (f_3 + b z + c f_2) (f_3 + d f_2),  ...
    """
    return [
        (index, factor, term)
        for index in range(products - 1)
        for factor, first in ((0, 1), (1, 2))
        for term in range(first, index + 2)
    ]


@dataclass(frozen=True, kw_only=True)
class _Solved:
    """A chain whose outer sum is the best for its inner numbers, and what it leaves."""

    chain: ProductChain
    left_over: np.ndarray  # of the target, weighted
    slopes: np.ndarray  # of what is left, by each inner number


def _solve_chain(
    numbers: np.ndarray, products: int, z: np.ndarray, target: np.ndarray, weights: np.ndarray
) -> _Solved:
    places = _places(products)
    factors = [np.zeros((2, index + 3)) for index in range(products - 1)]
    for row in factors:
        row[:, -1] = 1
    for number, (index, factor, term) in zip(numbers, places, strict=True):
        factors[index][factor, term] = number
    terms = np.stack([np.ones_like(z), z, z * z])
    by_number = np.zeros((3, len(numbers), len(z)))
    for index, row in enumerate(factors):
        left, right = row @ terms
        left_slope, right_slope = np.tensordot(row, by_number, 1)
        for number, (own, factor, term) in enumerate(places):
            if own == index:
                (left_slope, right_slope)[factor][number] += terms[term]
        terms = np.concatenate([terms, (left * right)[None]])
        by_number = np.concatenate([by_number, (left_slope * right + left * right_slope)[None]])
    # more rows, so that large numbers cost something
    wanted = np.concatenate([target * weights, np.zeros(len(terms))])
    ridge = math.sqrt(_RIDGE * float(wanted @ wanted))
    basis, triangle = np.linalg.qr(
        np.concatenate([(terms * weights).T, ridge * np.eye(len(terms))])
    )
    output = np.linalg.solve(triangle, basis.T @ wanted)
    slopes = -np.tensordot(output, by_number, 1).T * weights[:, None]
    slopes = np.concatenate([slopes, np.zeros((len(terms), len(numbers)))])
    return _Solved(
        chain=ProductChain(
            left=tuple(tuple(row[0].tolist()) for row in factors),
            right=tuple(tuple(row[1].tolist()) for row in factors),
            output=tuple(output.tolist()),
        ),
        left_over=wanted - basis @ (basis.T @ wanted),
        slopes=slopes - basis @ (basis.T @ slopes),
    )


def _descend(
    numbers: np.ndarray, products: int, z: np.ndarray, target: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return inner numbers at the end of a descent by Levenberg's and Marquardt's steps."""
    ridge = _RIDGE * float(((target * weights) ** 2).sum())

    def solve(numbers: np.ndarray) -> tuple[_Solved, float]:
        solved = _solve_chain(numbers, products, z, target, weights)
        return solved, float((solved.left_over**2).sum() + ridge * (numbers**2).sum())

    (here, cost), damping = solve(numbers), 1e-2
    for _ in range(_STEPS):
        slope = here.slopes.T @ here.left_over + ridge * numbers
        curvature = here.slopes.T @ here.slopes + ridge * np.eye(len(numbers))
        diagonal = np.diag(curvature.diagonal())
        for _ in range(_SHORTER):
            ahead = numbers - np.linalg.solve(curvature + damping * diagonal, slope)
            there, cost_there = solve(ahead)
            if cost_there < cost:
                break
            damping *= 4
        else:
            break
        gain = 1 - cost_there / cost
        numbers, here, cost, damping = ahead, there, cost_there, max(damping / 5, 1e-12)
        if gain < _LEAST_GAIN:
            break
    return numbers
