"""Losses, and the accuracy of a model on a whole split."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mpcvit.artifacts.config import DataConfig
from mpcvit.data import Split, eval_batches
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.vit import ViT
from mpcvit.train.devices import Devices

Logits = Float[Array, "batch classes"]


def cross_entropy(logits: Logits, targets: Float[Array, "batch classes"]) -> Float[Array, "batch"]:
    """Return the cost of soft targets, in nats per image.

        l[i] = - sum_c t[i, c] log softmax(z[i])[c]

    >>> round(cross_entropy(jnp.zeros((1, 4)), jnp.eye(4)[:1]).item(), 4)
    1.3863
    """
    return -(targets * jax.nn.log_softmax(logits)).sum(axis=-1)


def in_top(logits: Logits, labels: Int[Array, "batch"], k: int) -> Float[Array, "batch"]:
    """Return one where the label is among the k largest logits; ties and what is no number do not.

    >>> in_top(jnp.array([[1.0, 3.0, 2.0]]), jnp.array([2]), k=1).tolist()
    [0.0]
    >>> in_top(jnp.array([[1.0, 3.0, 2.0]]), jnp.array([2]), k=2).tolist()
    [1.0]
    """
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)
    # A constant output must not count as right; so the label is among what is not less. Nothing
    # is less than what is no number.
    return ((~(logits < own)).sum(axis=-1) <= k).astype(jnp.float32)


def divergence(student: Logits, teacher: Logits, temperature: float = 1.0) -> Float[Array, "batch"]:
    """Return how far a student's distribution is from its teacher's, in nats per image.

        l[i] = sum_c p[c] (log p[c] - log q[c]),  p = softmax(teacher / T), q = softmax(student / T)

    Zero where both agree up to a constant; no factor T^2.
    Source: docs/numerics.md#distillation

    >>> divergence(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [0.0]
    """
    wanted = jax.nn.log_softmax(teacher / temperature)
    found = jax.nn.log_softmax(student / temperature)
    return (jnp.exp(wanted) * (wanted - found)).sum(axis=-1)


def token_distance(
    student: Float[Array, "batch token width"], teacher: Float[Array, "batch token width"]
) -> Float[Array, "batch"]:
    """Return the mean square difference of two images' tokens.

        l[i] = mean over tokens and width of (s - t)^2

    The paper writes an l2 distance; its authors train with this mean, whose size
    does not depend on the shape of the network.
    Source: docs/numerics.md#distillation

    >>> token_distance(jnp.ones((1, 2, 3)), jnp.full((1, 2, 3), 3.0)).tolist()
    [4.0]
    """
    return jnp.square(student - teacher).mean(axis=(1, 2))


Progress = Callable[[int, int], None]
SUMS = 5  # that an evaluation consists of


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Mean results over `images` images; top-1 and top-5 as fractions.

    Of `stray` images the network gives no numbers. They count as wrong, and not for the loss.
    """

    images: int
    top1: float
    top5: float
    loss: float
    seconds: float
    split: str = "test"  # or "validation"
    stray: int = 0

    @classmethod
    def of(cls, sums: jax.Array, seconds: float) -> "Evaluation":
        """Make an evaluation from the sums of `sums_of` over all images."""
        images, top1, top5, loss, stray = (float(value) for value in sums)
        return cls(
            images=int(images),
            top1=top1 / images,
            top5=top5 / images,
            loss=loss / (images - stray) if images > stray else math.inf,
            seconds=seconds,
            stray=int(stray),
        )

    def as_metrics(self) -> dict[str, float]:
        """Return the results alone, as logs and checkpoints name them."""
        results = {"top1": self.top1, "top5": self.top5, "loss": self.loss}
        return {f"{self.split}_{name}": value for name, value in results.items()}


class Evaluator:
    """A compiled evaluation, kept for use after every epoch."""

    def __init__(
        self, logits: Callable[[Any, jax.Array], jax.Array], devices: Devices, batch_size: int
    ) -> None:
        self._devices = devices
        # Every device takes part in every batch, so its size is rounded up to their number.
        self._batch_size = math.ceil(batch_size / devices.count) * devices.count

        # Each batch takes the sums of the one before: batches in flight at once would have the
        # devices of a CPU wait for each other in different ones, with no thread left to end it.
        def add(sums: jax.Array, parameters: Any, images: Any, labels: Any, counted: Any) -> Any:
            return sums + sums_of(logits(parameters, images), labels, counted)

        self._add = devices.jit(add)

    def __call__(
        self, parameters: Any, split: Split, data: DataConfig, progress: Progress | None = None
    ) -> Evaluation:
        started = time.perf_counter()
        sums = self._devices.copy(jnp.zeros(SUMS))
        for index, batch in enumerate(eval_batches(split, data, self._batch_size)):
            sums = self._add(sums, parameters, *self._devices.from_whole(batch))
            if progress is not None:
                sums.block_until_ready()
                progress(min((index + 1) * self._batch_size, len(split)), len(split))
        return Evaluation.of(sums, time.perf_counter() - started)


def evaluate_checkpoint(
    checkpoint: Checkpoint, split: Split, batch_size: int, progress: Progress | None = None
) -> Evaluation:
    """Return the accuracy of a trained network on a split."""
    vit = ViT(checkpoint.model, checkpoint.architecture)
    evaluator = Evaluator(
        lambda parameters, images: vit.apply({"params": parameters}, images)[0],
        Devices(),
        batch_size,
    )
    return evaluator(checkpoint.parameters, split, checkpoint.data, progress)


def sums_of(logits: jax.Array, labels: jax.Array, counted: jax.Array) -> jax.Array:
    """Return images, top-1 and top-5 hits, the loss and stray images, summed where counted."""
    loss = cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[-1]))
    is_known = jnp.isfinite(loss)
    known = (in_top(logits, labels, 1), in_top(logits, labels, 5), loss)
    rows = (
        jnp.ones_like(counted),
        *(jnp.where(is_known, row, 0) for row in known),
        ~is_known,
    )
    return jnp.stack([jnp.where(counted > 0, row, 0).sum() for row in rows])
