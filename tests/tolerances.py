"""Named bounds, each with its reason."""

import numpy as np

F32 = 2e-5
"""Float32 against float64: rounding of 2^-24 grows over sums of some hundred
terms and a few layers to a few 1e-6; a factor of ten is left for other CPUs."""

FXP18 = 1e-3
"""Fixed point with 18 fraction bits against float32: every product is off by up to
2^-18 = 4e-6, and sums of tens of them, norms that divide by small numbers and
SPU's reciprocals turn that into some 1e-4 of the largest logit in these networks
(seen: up to 5e-4)."""

FXP18_EXP = 4e-3
"""The same where SPU takes an exponential: its exp(x) is (1 + x / 256)^256, which is
off by x^2 / 512, half a per cent at -1.6 (seen: up to 1.3e-3 of the largest logit)."""

FXP26 = 1e-4
"""Fixed point with 26 fraction bits against float32: a series' rounding, and float32's own."""


def assert_close(actual, expected, tolerance):
    """Compare relative to the largest expected entry, and refuse other shapes."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(actual - expected).max())
    assert difference <= tolerance * scale, f"{difference} > {tolerance} * {scale}"
