"""Batch norms' means and variances: read in training, averaged, and fixed for evaluation.

They lie in the parameter tree beside scales and biases, so that whatever reads
parameters reads them too. No gradient reaches them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mpcvit.artifacts.config import DataConfig, TrainConfig
from mpcvit.data import Split, normalisation, normalise
from mpcvit.model.vit import Intermediates, ViT
from mpcvit.train.devices import Devices

_MOMENTUM = 0.99  # of the running averages, an update
_BATCHES, _IMAGES = 120, 32  # that fixed statistics are taken from

Statistics = dict[str, Any]
"""A part of the parameter tree: batch norms with their mean and variance alone."""


class Learnt(NamedTuple):
    """What a network gives in training."""

    logits: jax.Array
    named: Intermediates
    statistics: Statistics  # of batch norms
    outliers: jax.Array  # how far batch norms' values lie beyond `FAR`, squared: the mean, summed


def learn(
    model: ViT,
    parameters: Any,
    images: jax.Array,
    rng: jax.Array,
    layer_share: jax.Array | None = None,
) -> Learnt:
    """Run a network in training."""
    (logits, named), found = model.apply(
        {"params": parameters},
        images,
        train=True,
        layer_share=layer_share,
        rngs={"dropout": rng},
        mutable=["statistics", "outliers"],
    )
    outliers = sum(jax.tree.leaves(found.get("outliers", {})), jnp.zeros(()))
    return Learnt(logits, named, dict(found.get("statistics", {})), outliers)


def measure(model: ViT, parameters: Any, images: jax.Array) -> Statistics:
    """Return the statistics of a batch as an evaluated network meets them: nothing is dropped."""
    config = replace(model.config, dropout=0.0, attention_dropout=0.0, stochastic_depth=0.0)
    return learn(model.clone(config=config), parameters, images, jax.random.key(0)).statistics


def layer_share(config: TrainConfig, epoch: jax.Array) -> jax.Array | None:
    """Return the share of layer norms in batch norms while a network is converted."""
    if config.norm_transition_epochs == 0:
        return None
    return jnp.clip(1 - epoch / config.norm_transition_epochs, 0, 1)


def has_statistics(parameters: Any) -> bool:
    """Return whether a parameter tree has batch norms."""
    if not isinstance(parameters, dict):
        return False
    return "variance" in parameters or any(map(has_statistics, parameters.values()))


def follow(parameters: Any, statistics: Any, momentum: float = _MOMENTUM) -> Any:
    """Move the running averages in a parameter tree towards the statistics of a batch."""
    if not isinstance(statistics, dict):
        return momentum * parameters + (1 - momentum) * statistics
    moved = {name: follow(parameters[name], own, momentum) for name, own in statistics.items()}
    return {**parameters, **moved}


class FixedStatistics:
    """Sets a network's statistics to medians over batches of training images.

    An average would not do: a few images whose values run away make a variance many
    times too large. The images are not augmented, and from all over the split.
    """

    def __init__(
        self, statistics: Callable[[Any, jax.Array], Statistics], devices: Devices
    ) -> None:
        self._devices, self._statistics = devices, statistics
        self._measure = devices.jit(statistics)

    def __call__(self, parameters: Any, split: Split, data: DataConfig) -> Any:
        """Return the parameters with fixed statistics; without batch norms, as they are."""
        batches = _spread_batches(split, data, self._devices.count)
        if not jax.eval_shape(self._statistics, parameters, next(batches)):
            return parameters
        found = [
            jax.device_get(self._measure(parameters, self._devices.from_whole(images)))
            for images in _spread_batches(split, data, self._devices.count)
        ]
        medians = jax.tree.map(lambda *values: _median(values), *found)
        return follow(parameters, self._devices.copy(medians), momentum=0.0)


def variance_ratio(running: Any, fixed: Any) -> float:
    """Return the largest ratio of running variances to fixed ones: outliers make it large."""
    if not isinstance(running, dict):
        return 0.0
    ratios = [variance_ratio(running[name], fixed[name]) for name in running]
    if "variance" in running:
        before, now = (np.asarray(tree["variance"]) for tree in (running, fixed))
        ratios.append(float((before / np.maximum(now, np.finfo(np.float32).tiny)).max()))
    return max(ratios, default=0.0)


def _spread_batches(split: Split, data: DataConfig, devices: int) -> Iterator[np.ndarray]:
    """Yield normalised images in batches, each from all over the split, whatever its order."""
    constants = normalisation(data.mean, data.std, split.images.shape[-1])
    size = math.ceil(min(_IMAGES, len(split)) / devices) * devices
    count = max(1, min(_BATCHES, len(split) // size))
    places = np.linspace(0, len(split) - 1, size * count).astype(int).reshape(size, count)
    for batch in places.T:
        yield normalise(np.asarray(split.images[batch]), *constants)


def _median(values: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return medians in which what is not a number counts as very large."""
    known = np.where(np.isnan(values), np.inf, values)
    return np.median(known, axis=0).astype(np.float32)
