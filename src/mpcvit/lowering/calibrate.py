"""Calibration: the ranges of values that the exact network gives on real images."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.lowering.fold import Weights
from mpcvit.lowering.jaxpr_walk import run_in_numpy
from mpcvit.lowering.network import NetworkPart, network_parts
from mpcvit.lowering.out_of_range import SeenRanges, watch_ranges
from mpcvit.lowering.sites import Functions, Plan, Range, exact_functions

_BATCH = 64  # images at a time, which bounds the memory
_GREYS = (0, 64, 128, 192, 255)
_SQUARES = (1, 2, 4, 8)
_RANDOM = 4  # of each kind

Progress = Callable[[str, int, int], None]


def calibrate(
    config: ModelConfig,
    architecture: Architecture,
    weights: Weights,
    images: np.ndarray,
    progress: Progress = lambda what, done, total: None,
) -> tuple[dict[str, Range], np.ndarray]:
    """Run the exact network over normalised images; return ranges by label, and its logits."""
    exact, seen = watch_ranges(exact_functions(config, architecture))
    logits = compute_logits(config, architecture, exact, weights, images, progress, seen)
    return seen.ranges(), logits


def compute_logits(
    config: ModelConfig,
    architecture: Architecture,
    functions: Functions,
    weights: Weights,
    images: np.ndarray,
    progress: Progress = lambda what, done, total: None,
    seen: SeenRanges | None = None,
) -> np.ndarray:
    """Return the logits of images, computed by NumPy part by part."""
    parts = network_parts(config, architecture, functions)

    def watched(part: NetworkPart, own: Any, x: Any) -> tuple[Any, Any]:
        result = part.function(own, x)
        return result, seen.take() if seen else {}

    logits = []
    for start in range(0, len(images), _BATCH):
        x: Any = images[start : start + _BATCH]
        for part in parts:
            x, met = run_in_numpy(partial(watched, part), weights[part.weights], x)
            if seen:
                seen.note(met)
        logits.append(x)
        progress("calibrating", start + len(x), len(images))
    return np.concatenate(logits)


def measure_error(
    config: ModelConfig,
    architecture: Architecture,
    weights: Weights,
    images: np.ndarray,
    exact: np.ndarray,
    plan: Plan,
) -> float:
    """Return how far a plan's logits are from the exact network's."""
    return relative_error(compute_logits(config, architecture, plan, weights, images), exact)


def relative_error(computed: np.ndarray, exact: np.ndarray) -> float:
    """Return the root mean square of a difference, in parts of the exact values' deviation.

    >>> relative_error(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
    1.0
    """
    error = np.sqrt(np.mean((np.asarray(computed, np.float64) - exact) ** 2))
    return float(error / np.std(exact))


def odd_pictures(size: int, channels: int) -> dict[str, np.ndarray]:
    """Return pictures that no training set holds, and that somebody will send, by name.

    They are flat, checkerboard, noise and saturated, as uint8 arrays.
    """
    shape = (size, size, channels)
    found = {f"flat {grey}": np.full(shape, grey, np.uint8) for grey in _GREYS}
    for channel in range(channels if channels > 1 else 0):
        picture = np.zeros(shape, np.uint8)
        picture[..., channel] = 255
        found[f"saturated channel {channel}"] = picture
    rows, columns = np.indices((size, size))
    for side in _SQUARES:
        squares = ((rows // side + columns // side) % 2 * 255).astype(np.uint8)
        found[f"checkerboard {side}"] = np.repeat(squares[..., None], channels, axis=2)
    rng = np.random.default_rng(0)
    for index in range(_RANDOM):
        found[f"noise {index}"] = rng.integers(0, 256, shape, np.uint8)
        found[f"saturated noise {index}"] = (rng.integers(0, 2, shape) * 255).astype(np.uint8)
    return found
