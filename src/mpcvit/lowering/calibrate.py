"""Calibration: the ranges of values that the exact network gives, and how large they become."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.engine import EngineSettings
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Truncation
from mpcvit.errors import UserError
from mpcvit.lowering.fold import Weights
from mpcvit.lowering.jaxpr_walk import RecordedValue, Traced, record_in_numpy, run_in_numpy
from mpcvit.lowering.network import NetworkPart, network_parts
from mpcvit.lowering.out_of_range import SeenRanges, watch_ranges
from mpcvit.lowering.sites import Functions, Plan, Range, exact_functions

_LEAST_FRACTION_BITS = 22  # rounding moves logits by 5e-5 of their spread there
LEAST_SAFE_BITS = 30  # an inference may fail with a probability of at most 2^-30
_BATCH = 64  # images at a time, which bounds the memory
_GREYS = (0, 64, 128, 192, 255)
_SQUARES = (1, 2, 4, 8)
_RANDOM = 4  # of each kind
_PRODUCTS = ("mul", "dot_general")
_CLIP = 8  # that is offered; norms of trained networks rarely give more

Progress = Callable[[str, int, int], None]
StageValues = dict[str, list[RecordedValue]]
"""What the products of each stage gave."""


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
    traced: dict[tuple[str, int], Traced] = {}
    logits = []
    done = 0
    for batch in batches(images):
        x: Any = batch
        for part in parts:
            own, place = weights[part.weights], (part.name, len(x))
            if place not in traced:  # all batches but the last have one size
                traced[place] = _trace(part, own, x, seen)
            x, met = run_in_numpy(traced[place], own, x)
            if seen:
                seen.note(met)
        logits.append(x)
        done += len(batch)
        progress("calibrating", done, len(images))
    return np.concatenate(logits)


def batches(images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield images a few at a time."""
    for start in range(0, len(images), _BATCH):
        yield images[start : start + _BATCH]


def _trace(part: NetworkPart, weights: Weights, x: Any, seen: SeenRanges | None = None) -> Traced:
    """Trace a part of the network, and with it what watched functions are given."""

    def watched(weights: Weights, x: Any) -> tuple[Any, Any]:
        result = part.function(weights, x)
        return result, seen.take() if seen else {}

    return jax.make_jaxpr(watched, return_shape=True)(weights, x)


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


def stage_values(
    config: ModelConfig,
    architecture: Architecture,
    functions: Functions,
    weights: Weights,
    images: np.ndarray,
) -> StageValues:
    """Return the products of a lowered network, stage by stage."""
    parts = network_parts(config, architecture, functions)
    traced: dict[tuple[str, int], Traced] = {}
    values: StageValues = {part.name: [] for part in parts}
    for batch in batches(images):
        x: Any = batch
        for part in parts:
            own, place = weights[part.weights], (part.name, len(x))
            if place not in traced:
                traced[place] = _trace(part, own, x)
            (x, _), found = record_in_numpy(traced[place], _PRODUCTS, own, x)
            values[part.name] += found
    return values


def count_products(values: StageValues, images: int) -> float:
    """Return how many numbers an inference truncates."""
    return sum(value.size for stage in values.values() for value in stage) / images


def engine_that_holds(
    values_of: Callable[[np.ndarray], StageValues],
    pictures: Mapping[str, np.ndarray],
    engine: EngineSettings,
    profile: Profile,
) -> EngineSettings:
    """Return an engine with as many fraction bits as leave room for the values of all pictures.

    Refuse a network whose values run away for one of them, and say in which block.
    """
    values = values_of(np.stack([*pictures.values()]))
    products = count_products(values, len(pictures))
    spare = engine.truncation is Truncation.LOCAL
    least = _LEAST_FRACTION_BITS if spare else engine.fraction_bits
    limit = 0.0
    for fraction_bits in range(engine.fraction_bits, least - 1, -1):
        tried = replace(engine, fraction_bits=fraction_bits)
        limit = min(tried.apply(profile).magnitude_limit, largest_safe(tried, products=products))
        if _first_beyond(values, limit) is None:
            return tried
    for name, picture in pictures.items():
        if (found := _first_beyond(values_of(picture[None]), limit)) is not None:
            stage, value = found
            raise UserError(
                f"{stage} runs away: for the picture {name!r} a product reaches "
                f"{value.largest:.3g}, but the engine holds {limit:.3g}. Keep a layer norm where "
                'the whole residual passes (model.layer_norms, such as "1.norm2"), clip what batch '
                f"norms give (model.clip = {_CLIP}), or show odd pictures and weigh outliers "
                "(augment.odd = 0.02, train.outlier_weight = 1); then train again"
            )
    return replace(engine, fraction_bits=least)  # beyond by rounding in a batch alone


def _first_beyond(values: StageValues, limit: float) -> tuple[str, RecordedValue] | None:
    """Return the first stage with a value beyond the limit, or with one that is no number."""
    for name, stage in values.items():
        for value in stage:
            if not value.largest < limit:
                return name, value
    return None


def safe_bits(engine: EngineSettings, *, products: float, largest: float) -> float:
    """-log2 of the probability that local truncation ruins an inference.

        products 2^(2 fraction_bits + log2(largest) + 1 - ring_bits)

    A share is uniform in the ring, and its truncation goes wrong where the sum of
    both wraps: for a number of that size with that probability, and over all
    products of an inference with at most their sum.

    >>> engine = EngineSettings(ring_bits=128, fraction_bits=26, truncation=Truncation.LOCAL,
    ...                       reuse_weight_masks=True)
    >>> safe_bits(engine, products=2**20, largest=2**10)
    45.0
    """
    if engine.truncation is not Truncation.LOCAL:
        return math.inf
    size = 2 * engine.fraction_bits + math.log2(max(largest, 1.0)) + 1
    return engine.ring_bits - size - math.log2(max(products, 1.0))


def largest_safe(engine: EngineSettings, *, products: float) -> float:
    """Return the largest number that this many products of an inference may give."""
    if engine.truncation is not Truncation.LOCAL:
        return math.inf
    return 2.0 ** (safe_bits(engine, products=products, largest=1.0) - LEAST_SAFE_BITS)


def require_safe(engine: EngineSettings, *, products: float, largest: float) -> None:
    """Refuse settings that would fail more often than once in 2^30 inferences."""
    if (bits := safe_bits(engine, products=products, largest=largest)) < LEAST_SAFE_BITS:
        raise UserError(
            f"local truncation in {engine.ring_bits} bits with {engine.fraction_bits} fraction "
            f"bits would ruin one inference in 2^{bits:.0f}; take fewer fraction bits"
        )
