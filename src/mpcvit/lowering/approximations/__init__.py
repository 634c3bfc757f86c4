"""Approximations: the formulas that SPU runs in place of expensive functions."""

from mpcvit.lowering.approximations.inverse_root import InverseRoot, Watched, invert_roots
from mpcvit.lowering.approximations.polynomials import (
    GELU_FORMS,
    ExponentialPolynomial,
    GeluPolynomial,
    Reciprocal,
    SteepFunction,
    rectified_cube,
)

Approximation = InverseRoot | Reciprocal | GeluPolynomial | ExponentialPolynomial
"""An approximation of one function on one calibrated interval.

`max_error` is a promise: tests sweep `domain` and compare.
"""

__all__ = [
    "GELU_FORMS",
    "Approximation",
    "ExponentialPolynomial",
    "GeluPolynomial",
    "InverseRoot",
    "Reciprocal",
    "SteepFunction",
    "Watched",
    "invert_roots",
    "rectified_cube",
]
