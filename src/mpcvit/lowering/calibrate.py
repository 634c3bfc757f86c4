"""Ranges of what the stand-ins take, seen by the exact network on real images."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from mpcvit.arch import Architecture, MlpForm
from mpcvit.config import ModelConfig, NormForm
from mpcvit.lowering.even_chain import EVEN_ACTIVATIONS
from mpcvit.lowering.fold import Weights, mlp_forms
from mpcvit.lowering.heads import order_heads
from mpcvit.lowering.network import forward
from mpcvit.model.layers import activate

_BATCH = 64
LOW_SHARE = 1e-3  # of the rows whose denominators may lie below a reciprocal's interval


@dataclass(frozen=True, kw_only=True)
class Range:
    """What one stand-in was given: extremes, and the value that few lie below."""

    low: float
    high: float
    low_share: float  # LOW_SHARE of the values are below it


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
class LayerTaps:
    """The exact functions of one layer."""

    norm1: Tap | None
    denominator: Tap | None
    norm2: Tap | None
    activation: Tap | None


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
    taps, norm = exact_functions(config, architecture)
    logits = []
    for start in range(0, len(images), _BATCH):
        part = images[start : start + _BATCH]
        logits.append(forward(config, architecture, taps, norm, weights, jnp.asarray(part)))
        progress(start + len(part))
    ranges = Ranges(
        layers=tuple(
            {name: tap.range() if tap is not None else None for name, tap in vars(layer).items()}
            for layer in taps
        ),
        norm=norm.range() if norm is not None else None,
    )
    return ranges, np.concatenate(logits)


def exact_functions(
    config: ModelConfig, architecture: Architecture
) -> tuple[list[LayerTaps], Tap | None]:
    """What each stand-in stands for, in float32."""

    def norm() -> Tap | None:
        if config.norm is NormForm.LINEAR:
            return None
        return Tap(lambda x: lax.rsqrt(x + config.norm_eps))

    layers = []
    for layer in architecture.layers:
        divides = bool(order_heads(layer.heads).normalised)
        bends = config.activation in EVEN_ACTIVATIONS and MlpForm.ACTIVATED in mlp_forms(layer)
        layers.append(
            LayerTaps(
                norm1=norm(),
                denominator=Tap(lambda x: 1 / (x + config.attention_eps)) if divides else None,
                norm2=norm(),
                activation=Tap(lambda x: activate(config.activation, x)) if bends else None,
            )
        )
    return layers, norm()
