"""A polynomial as a chain of products, one exchange each, fitted as a whole."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcvit.errors import UserError

_STARTS, _REWEIGHTINGS = 6, 3


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A polynomial in z by products of sums of what came before.

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

    def __call__(self, z: Any) -> Any:
        """Of a JAX or a NumPy array."""
        return _combine(self.terms(z), self.output)

    def terms(self, z: Any) -> list[Any]:
        """f_1, f_2, ..."""
        terms = [z, z * z]
        for left, right in zip(self.left, self.right, strict=True):
            terms.append(_combine(terms, left) * _combine(terms, right))
        return terms


def _combine(terms: list[Any], weights: tuple[float, ...]) -> Any:
    """weights[0] + sum_k weights[k + 1] terms[k]."""
    total: Any = weights[0]
    for term, weight in zip(terms, weights[1:], strict=True):
        total = total + (term if weight == 1 else term * weight)
    return total


def fit_chain(z: np.ndarray, target: np.ndarray, allowed: np.ndarray, products: int) -> Chain:
    """A chain near `target` at the points `z`, its largest error in units of `allowed` small.

    Gauss-Newton from random starts; the outer sum is solved for in every step.
    """
    from scipy.optimize import least_squares  # fits alone need it, and no party fits

    sizes = [3 + index for index in range(products - 1)]
    rng = np.random.default_rng(0)
    unit = 1 / allowed
    unit /= unit.mean()
    best, least = None, np.inf
    for _ in range(_STARTS):
        numbers = 0.5 * rng.standard_normal(sum(2 * size - 1 for size in sizes))
        weights = unit
        for _ in range(_REWEIGHTINGS):

            def residual(numbers: np.ndarray, weights: np.ndarray = weights) -> np.ndarray:
                return weights * (_solved(numbers, sizes, z, target, weights)(z) - target)

            if sizes:
                numbers = least_squares(residual, numbers, max_nfev=60).x
            chain = _solved(numbers, sizes, z, target, weights)
            error = np.abs(chain(z) - target)
            if (largest := float((error / allowed).max())) < least:
                best, least = chain, largest
            error = error * unit
            weights = weights * np.sqrt(error / error.max() + 0.05)
            weights /= weights.mean()
        if least <= 0.8:
            break
    assert best is not None
    return best


def _solved(
    numbers: np.ndarray, sizes: list[int], z: np.ndarray, target: np.ndarray, weights: np.ndarray
) -> Chain:
    """The chain of these inner numbers whose outer sum fits best.

    Left factors end in a 1, as their scale is free; right ones are given whole.
    """
    left, right, place = [], [], 0
    for size in sizes:
        left.append((*(float(value) for value in numbers[place : place + size - 1]), 1.0))
        place += size - 1
        right.append(tuple(float(value) for value in numbers[place : place + size]))
        place += size
    draft = Chain(left=tuple(left), right=tuple(right), output=(0.0,) * (3 + len(sizes)))
    terms = np.stack([np.ones_like(z), *draft.terms(z)], axis=1)
    output = np.linalg.lstsq(terms * weights[:, None], target * weights, rcond=None)[0]
    return Chain(left=draft.left, right=draft.right, output=tuple(float(value) for value in output))
