"""Calibration: the ranges of values that the exact network gives on real images."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.lowering.fold import Weights
from mpcvit.lowering.network import forward
from mpcvit.lowering.sites import Functions, Range, exact_functions

_BATCH = 64  # of whatever runs over images, so that they share compiled operations
_LOW_SHARE = 1e-4  # of the rows whose denominators may lie below a reciprocal's interval


@dataclass
class Tap:
    """An exact function that remembers what it was given."""

    function: Callable[[Array], Array]
    seen: list[np.ndarray] = field(default_factory=list)

    def __call__(self, x: Array) -> Array:
        values = np.asarray(x).ravel()
        self.seen.append(np.quantile(values, [0.0, 1.0, _LOW_SHARE]))
        return self.function(x)

    def range(self) -> Range:
        """Return the range of everything that the function was given."""
        seen = np.stack(self.seen)
        return Range(
            low=float(seen[:, 0].min()),
            high=float(seen[:, 1].max()),
            low_share=float(np.median(seen[:, 2])),
        )


def calibrate(
    config: ModelConfig,
    architecture: Architecture,
    weights: Weights,
    images: np.ndarray,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, Range], np.ndarray]:
    """Run the exact network over normalised images; return ranges by label, and its logits."""
    exact = exact_functions(config, architecture)
    taps = {label: Tap(function) for label, function in exact.items()}
    logits = compute_logits(config, architecture, taps, weights, images, progress)
    return {label: tap.range() for label, tap in taps.items() if tap.seen}, logits


def compute_logits(
    config: ModelConfig,
    architecture: Architecture,
    functions: Functions,
    weights: Weights,
    images: np.ndarray,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Return the logits of images, operation by operation.

    Layers and candidate networks have most operations in common, and each is
    compiled once; as one program, every network would be compiled anew.
    """
    logits = []
    for start in range(0, len(images), _BATCH):
        batch = jnp.asarray(images[start : start + _BATCH])
        logits.append(np.asarray(forward(config, architecture, functions, weights, batch)))
        progress(start + len(batch))
    return np.concatenate(logits)
