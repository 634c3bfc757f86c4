"""From splits to batches: augmented and shuffled for training, plain for evaluation."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from mpcvit.artifacts.config import AugmentConfig, DataConfig
from mpcvit.data.augment import (
    flip,
    rand_augment,
    random_erasing,
    random_resized_crop,
)
from mpcvit.data.dataset import Split
from mpcvit.data.images import normalisation, normalise
from mpcvit.data.mixing import Mix, draw_mix, mix, partners, soft_targets
from mpcvit.data.odd import draw_odd_picture
from mpcvit.errors import UserError

_MAX_THREADS = 8
_AHEAD = 2  # batches per thread that are made in advance


class Batch(NamedTuple):
    """The input of one training step of one process: NumPy arrays, or a device's."""

    images: Any  # float32 [batch, height, width, channel], normalised
    targets: Any  # float32 [batch, classes], each row sums to 1
    labels: Any  # int32 [batch], of the images before mixing
    indices: Any  # int32 [batch], of the images in their split


@dataclass(frozen=True)
class TrainBatches:
    """The batches of every epoch, each a function of (seed, epoch, step) alone.

    The number of threads, the step at which an epoch is resumed and the number of
    processes that share a batch change no bit. The shards of a batch, joined, are the
    batch; `shard` is (process, processes). A partial batch at the end of an epoch is
    dropped. If `data.workers` is 0, batches are made in the calling thread.
    """

    split: Split
    augment: AugmentConfig
    data: DataConfig
    _: KW_ONLY
    batch_size: int
    seed: int
    classes: int
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        process, processes = self.shard
        if not 0 <= process < processes:
            raise ValueError(f"there is no shard {process} of {processes}")
        if self.batch_size < 1 or self.batch_size % (2 * processes):
            raise UserError(
                f"train.batch_size is {self.batch_size}, but must be divisible by {2 * processes}: "
                "images are mixed in pairs, and each process takes the same number of them"
            )
        if self.batch_size > len(self.split):
            raise UserError(
                f"train.batch_size is {self.batch_size}, but there are only {len(self.split)} "
                "training images"
            )
        normalisation(self.data.mean, self.data.std, self.split.images.shape[-1])

    @property
    def steps_per_epoch(self) -> int:
        return len(self.split) // self.batch_size

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Give the batches of one epoch from `start_step` on, made ahead by threads."""
        steps = range(start_step, self.steps_per_epoch)
        if (threads := count_threads(self.data.workers)) == 0:
            yield from (self.make(epoch, step) for step in steps)
            return
        pool = ThreadPoolExecutor(threads, thread_name_prefix="mpcvit-data")
        try:
            pending = deque(pool.submit(self.make, epoch, s) for s in steps[: _AHEAD * threads])
            for step in steps:
                batch = pending.popleft().result()
                if step + _AHEAD * threads < steps.stop:
                    pending.append(pool.submit(self.make, epoch, step + _AHEAD * threads))
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)

    def make(self, epoch: int, step: int) -> Batch:
        """Make one batch. Threads may call this at once: it changes nothing here."""
        process, processes = self.shard
        size = self.batch_size // processes
        first = step * self.batch_size + process * size
        indices = _order(self.seed, epoch, len(self.split))[first : first + size]
        streams = Streams(seed=self.seed, purpose=Purpose.IMAGE)
        pixels = np.empty((size, *self.split.images.shape[1:]), np.uint8)
        for row, index in enumerate(indices):
            rng = streams.at(epoch=epoch, index=int(index))
            pixels[row] = self._augment(self._images[index], rng)
        is_odd = self._replace(pixels, indices, epoch)
        constants = normalisation(self.data.mean, self.data.std, pixels.shape[-1])
        images = normalise(pixels, *constants)
        if self.augment.erasing:
            streams = Streams(seed=self.seed, purpose=Purpose.ERASING)
            for row, index in enumerate(indices):
                rng = streams.at(epoch=epoch, index=int(index))
                images[row] = random_erasing(images[row], rng, probability=self.augment.erasing)
        labels = np.array(self.split.labels[indices], np.int32)
        images, targets = self._mix(epoch, first // 2, images, np.where(is_odd, -1, labels))
        return Batch(images, targets, labels, indices=indices.astype(np.int32))

    @cached_property
    def _images(self) -> np.ndarray:
        # a plain view: indexing np.memmap costs as much as flipping the image
        return np.asarray(self.split.images)

    def _augment(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        augment = self.augment
        if augment.crop_scale != (1, 1):
            image = random_resized_crop(
                image, rng, scale=augment.crop_scale, ratio=augment.crop_ratio
            )
        if augment.flip:
            image = flip(image, rng, probability=augment.flip)
        return rand_augment(
            image,
            rng,
            ops=augment.rand_augment_ops,
            magnitude=augment.rand_augment_magnitude,
            std=augment.rand_augment_std,
            fill=tuple(min(255, round(255 * mean)) for mean in self.data.mean),
        )

    def _replace(self, pixels: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Put odd pictures in the place of some images, and say where."""
        is_odd = np.zeros(len(pixels), bool)
        if self.augment.odd:
            streams = Streams(seed=self.seed, purpose=Purpose.ODD)
            for row, index in enumerate(indices):
                rng = streams.at(epoch=epoch, index=int(index))
                is_odd[row] = rng.random() < self.augment.odd
                if is_odd[row]:
                    pixels[row] = draw_odd_picture(pixels[row].shape, rng)
        return is_odd

    def _mix(
        self, epoch: int, first_pair: int, images: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        augment = self.augment
        mixes = [Mix()] * (len(labels) // 2)
        if augment.mix_off_epoch == 0 or epoch < augment.mix_off_epoch:
            streams = Streams(seed=self.seed, purpose=Purpose.PAIR)
            mixes = [
                draw_mix(
                    streams.at(epoch=epoch, index=first_pair + pair),
                    height=images.shape[1],
                    width=images.shape[2],
                    mixup=augment.mixup,
                    cutmix=augment.cutmix,
                    probability=augment.mix_probability,
                    switch=augment.mix_switch,
                )
                for pair in range(len(mixes))
            ]
        lam = np.repeat([choice.lam for choice in mixes], 2)
        targets = soft_targets(labels, partners(labels), lam, self.classes, augment.label_smoothing)
        return mix(images, mixes), targets


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of an epoch's images."""
    return Streams(seed=seed, purpose=Purpose.ORDER).at(epoch=epoch, index=0).permutation(count)


class EvalBatch(NamedTuple):
    """A batch of fixed size; `mask` is 1 for an image and 0 for padding."""

    images: np.ndarray  # float32 [batch, height, width, channel], normalised
    labels: np.ndarray  # int32 [batch]
    mask: np.ndarray  # float32 [batch]


def eval_batches(split: Split, data: DataConfig, batch_size: int) -> Iterator[EvalBatch]:
    """Give all images once and in order; zeros fill up the last batch."""
    constants = normalisation(data.mean, data.std, split.images.shape[-1])
    for start in range(0, len(split), batch_size):
        pixels = np.asarray(split.images[start : start + batch_size])
        count = len(pixels)
        images = np.zeros((batch_size, *pixels.shape[1:]), np.float32)
        images[:count] = normalise(pixels, *constants)
        labels = np.zeros(batch_size, np.int32)
        labels[:count] = split.labels[start : start + count]
        yield EvalBatch(images, labels, (np.arange(batch_size) < count).astype(np.float32))


def count_threads(wanted: int) -> int:
    """Return the number of threads that make batches; -1 is resolved by the cores.

    That is one per core beside the trainer's, and at most eight. On up to two cores it
    is none, because training keeps all of them busy.
    """
    if wanted >= 0:
        return wanted
    cores = len(os.sched_getaffinity(0))
    return 0 if cores <= 2 else min(_MAX_THREADS, cores - 1)


class Purpose(IntEnum):
    """The purpose of a stream; streams of different purposes never meet."""

    ORDER = 0
    IMAGE = 1
    ERASING = 2
    PAIR = 3
    ODD = 4


class Streams:
    """One independent stream of random numbers per (seed, purpose, epoch, index).

    Philox turns a key and a counter into random bits. Here the key is (seed,
    purpose), the counter's upper words are (epoch, index), and its lowest word
    counts what is drawn: no two streams share a counter value.

    One generator is moved from stream to stream, since setting its state takes a
    tenth of the time that making a generator does. A generator from `at` is
    therefore good until the next call of `at`.

    >>> streams = Streams(seed=5, purpose=Purpose.IMAGE)
    >>> first = streams.at(epoch=0, index=3).random()
    >>> other = streams.at(epoch=0, index=4).random()
    >>> first == streams.at(epoch=0, index=3).random(), first == other
    (True, False)
    """

    def __init__(self, *, seed: int, purpose: Purpose) -> None:
        self._bits = np.random.Philox(key=np.array([seed % 2**64, purpose], np.uint64))
        self._generator = np.random.Generator(self._bits)
        state: Any = self._bits.state  # numpy's annotation forgets the nested arrays
        self._state = state
        self._counter = state["state"]["counter"]

    def at(self, *, epoch: int, index: int) -> np.random.Generator:
        self._counter[:] = (0, index, epoch, 0)
        self._bits.state = self._state
        return self._generator
