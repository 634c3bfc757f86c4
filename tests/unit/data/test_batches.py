import os
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mpcvit.artifacts.config import AugmentConfig, DataConfig
from mpcvit.data import Batch, Split, TrainBatches, eval_batches
from mpcvit.data.batches import count_threads
from mpcvit.errors import UserError

RGB = DataConfig(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), workers=0)
FLOAT32_ROUNDING = 1e-6  # of values below 4


def train(split: Split, augment: AugmentConfig | None = None, **changes: Any) -> TrainBatches:
    settings = {"batch_size": 12, "seed": 3, "classes": 5, **changes}
    data = replace(RGB, workers=settings.pop("workers", 0))
    return TrainBatches(split, augment or AugmentConfig(), data, **settings)


def assert_same(one: Batch, other: Batch) -> None:
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_array_equal(one.targets, other.targets)
    np.testing.assert_array_equal(one.labels, other.labels)


def denormalised(images: np.ndarray) -> np.ndarray:
    return np.rint((images * np.array(RGB.std) + np.array(RGB.mean)) * 255).astype(np.uint8)


def test_batch_has_the_promised_arrays(small_split, everything):
    batch = next(train(small_split, everything).batches(0))
    assert (batch.images.shape, batch.images.dtype) == ((12, 11, 13, 3), np.float32)
    assert (batch.targets.shape, batch.targets.dtype) == ((12, 5), np.float32)
    assert (batch.labels.shape, batch.labels.dtype) == ((12,), np.int32)
    np.testing.assert_allclose(batch.targets.sum(1), 1, rtol=0, atol=FLOAT32_ROUNDING)


def test_an_epoch_shows_each_image_once(small_split):
    batches = list(train(small_split).batches(0))
    assert len(batches) == train(small_split).steps_per_epoch == 61 // 12
    pixels = denormalised(np.concatenate([batch.images for batch in batches]))
    index_of = {image.tobytes(): index for index, image in enumerate(small_split.images)}
    shown = [index_of[image.tobytes()] for image in pixels]
    assert len(set(shown)) == 60
    labels = np.concatenate([batch.labels for batch in batches])
    np.testing.assert_array_equal(labels, small_split.labels[shown])
    targets = np.concatenate([batch.targets for batch in batches])
    np.testing.assert_array_equal(targets, np.eye(5, dtype=np.float32)[labels])


def test_odd_pictures_take_the_place_of_a_share_of_the_images(small_split):
    """They have no class; all else stays as it was, bit by bit."""
    augment, epochs = AugmentConfig(crop_scale=(0.5, 1.0), flip=0.5), 20
    replaced, images, kinds = 0, 0, set()
    for epoch in range(epochs):
        plain = train(small_split, augment).batches(epoch)
        odd = train(small_split, replace(augment, odd=0.2)).batches(epoch)
        for before, after in zip(plain, odd, strict=True):
            np.testing.assert_array_equal(before.labels, after.labels)
            is_odd = (before.targets != after.targets).any(axis=1)
            np.testing.assert_array_equal(before.images[~is_odd], after.images[~is_odd])
            assert (after.targets[is_odd] == np.float32(1 / 5)).all()
            replaced, images = replaced + is_odd.sum(), images + len(is_odd)
            for picture in denormalised(after.images[is_odd]):
                colours = len(np.unique(picture.reshape(-1, 3), axis=0))
                kinds.add((min(colours, 9), bool(np.isin(picture, (0, 255)).all())))
    assert kinds >= {(1, False), (1, True), (2, False), (2, True), (9, False), (8, True)}
    assert abs(replaced / images - 0.2) < 6 * (0.2 * 0.8 / images) ** 0.5


@pytest.mark.parametrize("change", [{"seed": 4}, {"epoch": 1}])
def test_seed_and_epoch_change_order_and_images(change, small_split, everything):
    first = next(train(small_split, everything).batches(0))
    other_seed = train(small_split, everything, seed=change.get("seed", 3))
    other = next(other_seed.batches(change.get("epoch", 0)))
    assert not np.array_equal(first.labels, other.labels)
    assert not np.array_equal(first.images, other.images)


def test_resumed_epoch_goes_on_as_it_would(small_split, everything):
    whole = list(train(small_split, everything).batches(2))
    rest = list(train(small_split, everything).batches(2, start_step=3))
    assert len(rest) == 2
    for one, other in zip(whole[3:], rest, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("start_step", [0, 9])
def test_threads_change_no_bit(workers, start_step, small_split, everything):
    expected = list(train(small_split, everything, batch_size=4).batches(1, start_step))
    threaded = train(small_split, everything, batch_size=4, workers=workers)
    made = list(threaded.batches(1, start_step))
    assert len(made) == len(expected) == 15 - start_step
    for one, other in zip(expected, made, strict=True):
        assert_same(one, other)


def test_threads_work_ahead_at_the_same_time(small_split):
    """Every thread waits for the others, which none of them could do alone."""
    together = threading.Barrier(3, timeout=20.0)

    class Meeting(TrainBatches):
        def make(self, epoch: int, step: int) -> Batch:
            together.wait()
            return super().make(epoch, step)

    data = replace(RGB, workers=3)
    settings = {"batch_size": 4, "seed": 3, "classes": 5}
    made = Meeting(small_split, AugmentConfig(), data, **settings).batches(0)
    assert len(list(made)) == 15


def test_threads_end_when_batches_are_given_up(small_split, everything):
    made = train(small_split, everything, batch_size=4, workers=2)
    before = threading.active_count()
    old = made.batches(0)
    next(old)
    assert threading.active_count() == before + 2
    del old
    assert threading.active_count() == before
    assert_same(
        next(made.batches(1)), next(train(small_split, everything, batch_size=4).batches(1))
    )


def test_a_failure_in_a_thread_is_raised(small_split):
    with pytest.raises(IndexError, match="out of bounds"):
        next(train(small_split, classes=2, workers=1).batches(0))


@pytest.mark.parametrize("processes", [2, 3])
def test_shards_make_up_the_batch(processes, small_split, everything):
    shards = [
        list(train(small_split, everything, shard=(process, processes)).batches(1))
        for process in range(processes)
    ]
    for step, whole in enumerate(train(small_split, everything).batches(1)):
        parts = [shard[step] for shard in shards]
        joined = Batch(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        assert_same(whole, joined)


def test_an_image_is_augmented_alike_in_any_company(small_split, everything):
    """Batch size moves images to other positions; what happens to each stays the same."""
    alone = replace(everything, mixup=0.0, cutmix=0.0)
    seen: list[set[bytes]] = []
    for batch_size in (2, 10):
        batches = train(small_split, alone, batch_size=batch_size).batches(0)
        seen.append({image.tobytes() for batch in batches for image in batch.images})
    assert len(seen[0] & seen[1]) == 60


def test_mixing_ends_at_its_epoch(small_split):
    augment = AugmentConfig(mixup=0.8, mix_off_epoch=2)
    mixed = [
        (next(train(small_split, augment).batches(epoch)).targets.max(1) < 1).any()
        for epoch in range(4)
    ]
    assert mixed == [True, True, False, False]


def test_mixed_targets_belong_to_mixed_images():
    """Black and white images tell by their brightness how they were mixed."""
    images = np.zeros((40, 5, 5, 1), np.uint8)
    images[20:] = 255
    split = Split(images=images, labels=np.repeat([0, 1], 20).astype(np.int32))
    data = DataConfig(mean=(0.0,), std=(1.0,), workers=0)
    for augment in (AugmentConfig(mixup=1.0), AugmentConfig(cutmix=1.0)):
        made = TrainBatches(split, augment, data, batch_size=40, seed=0, classes=2)
        batch = next(made.batches(0))
        white = batch.images.mean((1, 2, 3))
        np.testing.assert_allclose(batch.targets[:, 1], white, rtol=0, atol=FLOAT32_ROUNDING)
        assert ((white > 0.01) & (white < 0.99)).any()


def test_moved_in_pixels_have_the_mean_colour():
    split = Split(images=np.zeros((2, 16, 16, 3), np.uint8), labels=np.zeros(2, np.int32))
    augment = AugmentConfig(rand_augment_ops=2)
    mean = np.rint(np.array(RGB.mean) * 255).astype(np.uint8)
    pixels = np.concatenate(
        [
            denormalised(next(train(split, augment, batch_size=2).batches(epoch)).images)
            for epoch in range(40)
        ]
    )
    assert (pixels == mean).all(-1).any()


def test_batch_larger_than_the_split_is_refused(small_split):
    with pytest.raises(UserError, match="batch_size is 62, but there are only 61 training images"):
        train(small_split, batch_size=62)


@pytest.mark.parametrize(("batch_size", "processes"), [(7, 1), (10, 2), (0, 1)])
def test_batch_that_cannot_be_paired_is_refused(batch_size, processes, small_split):
    with pytest.raises(UserError, match=f"must be divisible by {2 * processes}"):
        train(small_split, batch_size=batch_size, shard=(0, processes))


def test_constants_for_other_channels_are_refused(small_split):
    with pytest.raises(UserError, match="but the images have 3 channels"):
        TrainBatches(small_split, AugmentConfig(), DataConfig(), batch_size=2, seed=0, classes=5)


@pytest.mark.parametrize("batch_size", [7, 61, 64])
def test_evaluation_sees_each_image_once_and_in_order(batch_size, small_split):
    batches = list(eval_batches(small_split, RGB, batch_size))
    assert {batch.images.shape for batch in batches} == {(batch_size, 11, 13, 3)}
    images, labels, mask = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    assert (images.dtype, labels.dtype, mask.dtype) == (np.float32, np.int32, np.float32)
    assert mask.tolist() == [1] * 61 + [0] * (len(mask) - 61)
    np.testing.assert_array_equal(denormalised(images[:61]), small_split.images)
    np.testing.assert_array_equal(labels[:61], small_split.labels)
    assert not images[61:].any()


@pytest.mark.parametrize(("cores", "threads"), [(1, 0), (2, 0), (3, 2), (8, 7), (9, 8), (64, 8)])
def test_threads_by_the_number_of_cores(cores, threads, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)))
    assert count_threads(-1) == threads
    assert count_threads(5) == 5
