"""Ranges of what the stand-ins take, seen by the exact network on real images."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.lowering.fold import Weights
from mpcvit.lowering.functions import exact_functions
from mpcvit.lowering.network import forward

_BATCH = 64  # of whatever runs over images, so that they share compiled operations
LOW_SHARE = 1e-4  # of the rows whose denominators may lie below a reciprocal's interval


@dataclass(frozen=True, kw_only=True)
class Range:
    """What one stand-in was given: extremes, and the value that few lie below."""

    low: float
    high: float
    low_share: float  # LOW_SHARE of the values are below it

    def reaching(self, other: "Range | None") -> "Range":
        """The same, with the extremes of another where they are further out."""
        if other is None:
            return self
        return Range(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            low_share=self.low_share,
        )

    def times(self, factor: float) -> "Range":
        """Of values that are not negative: both ends further out."""
        return Range(low=self.low / factor, high=self.high * factor, low_share=self.low_share)


@dataclass
class Tap:
    """An exact function that remembers what it was given."""

    function: Callable[[Array], Array]
    seen: list[np.ndarray] = field(default_factory=list)

    def __call__(self, x: Array) -> Array:
        values = np.asarray(x).ravel()
        self.seen.append(np.quantile(values, [0.0, 1.0, LOW_SHARE]))
        return self.function(x)

    def range(self) -> Range | None:
        """None where nothing came by."""
        if not self.seen:
            return None
        seen = np.stack(self.seen)
        return Range(
            low=float(seen[:, 0].min()),
            high=float(seen[:, 1].max()),
            low_share=float(np.median(seen[:, 2])),
        )


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """What every stand-in of a network was given."""

    layers: tuple[dict[str, Range | None], ...]
    norm: Range | None


def calibrate(
    config: ModelConfig,
    architecture: Architecture,
    weights: Weights,
    images: np.ndarray,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Ranges, np.ndarray]:
    """Run the exact network over normalised images; give the ranges, and its logits."""
    functions = exact_functions(config, architecture).wrapped(lambda place, own: Tap(own))

    def network(batch: Array) -> Array:
        return forward(config, architecture, functions, weights, batch)

    logits = run_in_batches(network, images, progress)

    def seen(function: Any) -> Range | None:
        return None if function is None else function.range()

    ranges = Ranges(
        layers=tuple(
            {name: seen(own) for name, own in vars(layer).items()} for layer in functions.layers
        ),
        norm=seen(functions.norm),
    )
    return ranges, logits


def run_in_batches(
    network: Callable[[Array], Array],
    images: np.ndarray,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Logits of images, operation by operation.

    Layers and candidate networks have most operations in common, and each is
    compiled once; as one program, every network would be compiled anew.
    """
    logits = []
    for start in range(0, len(images), _BATCH):
        part = jnp.asarray(images[start : start + _BATCH])
        logits.append(np.asarray(network(part)))
        progress(start + len(part))
    return np.concatenate(logits)
