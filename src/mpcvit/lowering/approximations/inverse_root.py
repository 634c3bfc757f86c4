"""1 / sqrt(x + eps) over a calibrated interval, by one Chebyshev series."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.codec import tagged
from mpcvit.errors import UserError
from mpcvit.lowering.approximations.polynomials import OnInterval

DEPTHS = range(1, 9)


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


@dataclass(frozen=True)
class Watched:
    """An approximation whose every array is passed to `note` first."""

    approximation: Any
    note: Callable[[Array], None]

    def __call__(self, x: Array) -> Array:
        self.note(x)
        return self.approximation(x)


def invert_roots(
    functions: Sequence[Callable[[Array], Array]], arrays: Sequence[Array]
) -> list[Array]:
    """Return several inverse roots, each of its own array, in the exchanges of the longest."""
    for function, x in zip(functions, arrays, strict=True):
        if isinstance(function, Watched):
            function.note(x)
    functions = [
        function.approximation if isinstance(function, Watched) else function
        for function in functions
    ]
    roots = [function for function in functions if isinstance(function, InverseRoot)]
    if len(roots) < len(functions):  # exact ones, whose exchanges nobody counts
        return [function(x) for function, x in zip(functions, arrays, strict=True)]
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
