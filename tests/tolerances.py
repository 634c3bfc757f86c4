"""Named bounds, each with its reason."""

import numpy as np

F32 = 2e-5
"""Float32 against float64: rounding of 2^-24 grows over sums of some hundred
terms and a few layers to a few 1e-6; a factor of ten is left for other CPUs."""


def assert_close(actual, expected, tolerance):
    """Compare relative to the largest expected entry, and refuse other shapes."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(actual - expected).max())
    assert difference <= tolerance * scale, f"{difference} > {tolerance} * {scale}"
