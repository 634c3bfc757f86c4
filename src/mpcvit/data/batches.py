"""One training batch as a function of (recipe, epoch, step), wherever it is computed."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpcvit.artifacts.config import AugmentConfig
from mpcvit.data.augment import (
    flip,
    normalisation,
    normalise,
    random_erasing,
    random_resized_crop,
)
from mpcvit.data.dataset import Split
from mpcvit.data.mixing import Mix, draw_mix, mix, partners, soft_targets
from mpcvit.data.randaugment import rand_augment
from mpcvit.data.streams import Purpose, Streams


class Batch(NamedTuple):
    """What one training step of one process needs: NumPy arrays, or a device's."""

    images: Any  # float32 [batch, height, width, channel], normalised
    targets: Any  # float32 [batch, classes], each row sums to 1
    labels: Any  # int32 [batch], of the images before mixing
    indices: Any  # int32 [batch], where the images lie in their split


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides what is in a batch; `shard` is (process, processes)."""

    split: Split
    augment: AugmentConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int
    seed: int
    classes: int
    shard: tuple[int, int]

    @property
    def shard_size(self) -> int:
        return self.batch_size // self.shard[1]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.split.images.shape[1:]
        return height, width, channels


class BatchMaker:
    """Makes the batches of a recipe, in any order and with equal results everywhere."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        # a plain view: indexing np.memmap costs as much as flipping the image
        self._images = np.asarray(recipe.split.images)
        self._factor, self._offset = normalisation(recipe.mean, recipe.std, recipe.image_shape[-1])
        self._fill = tuple(min(255, round(255 * mean)) for mean in recipe.mean)
        self._image_streams = Streams(seed=recipe.seed, purpose=Purpose.IMAGE)
        self._erasing_streams = Streams(seed=recipe.seed, purpose=Purpose.ERASING)
        self._pair_streams = Streams(seed=recipe.seed, purpose=Purpose.PAIR)
        self._order_epoch = -1
        self._order = np.empty(0, np.int64)

    def make(self, epoch: int, step: int) -> Batch:
        recipe = self._recipe
        first = step * recipe.batch_size + recipe.shard[0] * recipe.shard_size
        indices = self._order_of(epoch)[first : first + recipe.shard_size]
        pixels = np.empty((len(indices), *recipe.image_shape), np.uint8)
        for row, index in enumerate(indices):
            pixels[row] = self._augment(epoch, int(index))
        images = normalise(pixels, self._factor, self._offset)
        if recipe.augment.erasing:
            for row, index in enumerate(indices):
                rng = self._erasing_streams.at(epoch=epoch, index=int(index))
                images[row] = random_erasing(images[row], rng, probability=recipe.augment.erasing)
        labels = np.array(recipe.split.labels[indices], np.int32)
        images, targets = self._mix(epoch, first // 2, images, labels)
        return Batch(images, targets, labels, indices=indices.astype(np.int32))

    def _order_of(self, epoch: int) -> np.ndarray:
        if epoch != self._order_epoch:
            rng = Streams(seed=self._recipe.seed, purpose=Purpose.ORDER).at(epoch=epoch, index=0)
            self._order_epoch, self._order = epoch, rng.permutation(len(self._recipe.split))
        return self._order

    def _augment(self, epoch: int, index: int) -> np.ndarray:
        augment = self._recipe.augment
        rng = self._image_streams.at(epoch=epoch, index=index)
        image = self._images[index]
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
            fill=self._fill,
        )

    def _mix(
        self, epoch: int, first_pair: int, images: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        augment = self._recipe.augment
        mixes = [Mix()] * (len(labels) // 2)
        if augment.mix_off_epoch == 0 or epoch < augment.mix_off_epoch:
            mixes = [
                draw_mix(
                    self._pair_streams.at(epoch=epoch, index=first_pair + pair),
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
        targets = soft_targets(
            labels, partners(labels), lam, self._recipe.classes, augment.label_smoothing
        )
        return mix(images, mixes), targets
