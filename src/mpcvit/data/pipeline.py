"""From splits to batches: augmented and shuffled for training, plain for evaluation."""

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpcvit.artifacts.config import AugmentConfig, DataConfig
from mpcvit.data.augment import normalisation, normalise
from mpcvit.data.batches import Batch, BatchMaker, Recipe
from mpcvit.data.dataset import Split
from mpcvit.data.workers import Task, WorkerPool
from mpcvit.errors import UserError

_MOST_WORKERS = 8


class TrainBatches:
    """The batches of every epoch, each a function of (seed, epoch, step) alone.

    The number of workers, where an epoch is resumed and how many processes share a
    batch change no bit: the shards of a batch, one after the other, are the batch.
    A partial batch at the end of an epoch is dropped.

    `workers` overrides `data.workers`: 0 makes batches in the calling thread,
    more in that many processes, which start on first use and end with `close`.
    """

    def __init__(
        self,
        split: Split,
        augment: AugmentConfig,
        data: DataConfig,
        *,
        batch_size: int,
        seed: int,
        classes: int,
        shard: tuple[int, int] = (0, 1),
        workers: int | None = None,
    ) -> None:
        process, processes = shard
        if not 0 <= process < processes:
            raise ValueError(f"there is no shard {process} of {processes}")
        if batch_size < 1 or batch_size % (2 * processes):
            raise UserError(
                f"train.batch_size is {batch_size}, but must be divisible by {2 * processes}: "
                "images are mixed in pairs, and each process takes as many"
            )
        if batch_size > len(split):
            raise UserError(
                f"train.batch_size is {batch_size}, but there are only {len(split)} training images"
            )
        self._recipe = Recipe(
            split=split,
            augment=augment,
            mean=data.mean,
            std=data.std,
            batch_size=batch_size,
            seed=seed,
            classes=classes,
            shard=shard,
        )
        self._maker = BatchMaker(self._recipe)
        self._workers = count_workers(data.workers if workers is None else workers)
        self._pool: WorkerPool | None = None

    @property
    def steps_per_epoch(self) -> int:
        return len(self._recipe.split) // self._recipe.batch_size

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from `start_step` on; ask for one epoch at a time."""
        tasks = [Task(epoch, step) for step in range(start_step, self.steps_per_epoch)]
        if self._workers == 0:
            return (self._maker.make(task.epoch, task.step) for task in tasks)
        if self._pool is None or self._pool.is_closed:
            self._pool = WorkerPool(self._recipe, self._workers)
        return self._pool.run(tasks)

    def close(self) -> None:
        """End the workers; a later `batches` starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> "TrainBatches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EvalBatch(NamedTuple):
    """A batch of fixed size; `mask` is 1 for an image and 0 for padding."""

    images: np.ndarray  # float32 [batch, height, width, channel], normalised
    labels: np.ndarray  # int32 [batch]
    mask: np.ndarray  # float32 [batch]


def eval_batches(split: Split, data: DataConfig, batch_size: int) -> Iterator[EvalBatch]:
    """All images once and in order, the last batch filled up with zeros."""
    constants = normalisation(data.mean, data.std, split.images.shape[-1])
    for start in range(0, len(split), batch_size):
        pixels = np.asarray(split.images[start : start + batch_size])
        count = len(pixels)
        images = np.zeros((batch_size, *pixels.shape[1:]), np.float32)
        images[:count] = normalise(pixels, *constants)
        labels = np.zeros(batch_size, np.int32)
        labels[:count] = split.labels[start : start + count]
        yield EvalBatch(images, labels, (np.arange(batch_size) < count).astype(np.float32))


def count_workers(wanted: int) -> int:
    """Resolve -1: one worker per core but the trainer's, at most eight.

    Up to two cores it is none: there training keeps every core busy by itself, and
    steps take as long with workers as without.
    """
    if wanted >= 0:
        return wanted
    cores = len(os.sched_getaffinity(0))
    return 0 if cores <= 2 else min(_MOST_WORKERS, cores - 1)
