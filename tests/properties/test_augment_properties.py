"""Identities of augmentation and batching over random settings."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mpcvit.artifacts.config import AugmentConfig, DataConfig
from mpcvit.data import (
    Mix,
    Split,
    TrainBatches,
    decode_image,
    fit_image,
    flip,
    mix,
    normalisation,
    normalise,
    partners,
    rand_augment,
    random_erasing,
    random_resized_crop,
    soft_targets,
)
from mpcvit.errors import UserError

FLOAT32_ROUNDING = 1e-5  # sums of a hundred products, each rounded to one part in 10**7
sides = st.integers(2, 23)
seeds = st.integers(0, 2**32)
shares = st.floats(0, 1)
channel_counts = st.sampled_from([1, 3])


def random_image(seed: int, height: int, width: int, channels: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


@settings(max_examples=60, deadline=None)
@given(seeds, sides, sides, channel_counts, st.integers(0, 3), st.floats(0, 10), st.floats(0, 3))
def test_augmented_images_keep_shape_and_type(seed, height, width, channels, ops, magnitude, std):
    image = random_image(seed, height, width, channels)
    before = image.copy()

    def augmented() -> np.ndarray:
        rng = np.random.default_rng(seed)
        result = random_resized_crop(image, rng, scale=(0.2, 1), ratio=(0.6, 1.7))
        result = flip(result, rng, probability=0.5)
        fill = (128,) * channels
        return rand_augment(result, rng, ops=ops, magnitude=magnitude, std=std, fill=fill)

    assert augmented().shape == image.shape
    assert augmented().dtype == np.uint8
    np.testing.assert_array_equal(augmented(), augmented())
    np.testing.assert_array_equal(image, before)


@settings(max_examples=60, deadline=None)
@given(seeds, sides, sides, shares)
def test_erasing_is_finite_and_pure(seed, height, width, probability):
    image = np.zeros((height, width, 1), np.float32)
    erased = random_erasing(image, np.random.default_rng(seed), probability=probability)
    assert erased.shape == image.shape
    assert erased.dtype == np.float32
    assert np.isfinite(erased).all()
    assert not image.any()


@settings(max_examples=60, deadline=None)
@given(seeds, sides, sides, channel_counts, st.floats(0.01, 0.99), st.floats(0.01, 2))
def test_normalise_can_be_undone(seed, height, width, channels, mean, std):
    image = random_image(seed, height, width, channels)[None]
    constants = normalisation((mean,) * channels, (std,) * channels, channels)
    back = (normalise(image, *constants) * std + mean) * 255
    np.testing.assert_array_equal(np.rint(back), image)


@settings(max_examples=60, deadline=None)
@given(seeds, st.lists(shares, min_size=1, max_size=5))
def test_mixup_keeps_the_sum_of_each_pair(seed, lams):
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((2 * len(lams), 3, 5, 1)).astype(np.float32)
    mixed = mix(images, [Mix(lam=lam) for lam in lams])
    np.testing.assert_allclose(
        mixed[::2] + mixed[1::2], images[::2] + images[1::2], rtol=0, atol=FLOAT32_ROUNDING
    )


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 9), st.integers(2, 97), st.floats(0, 0.99))
def test_targets_are_probabilities(seed, pairs, classes, smoothing):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, 2 * pairs)
    lam = np.repeat(rng.random(pairs), 2)
    targets = soft_targets(labels, partners(labels), lam, classes, smoothing)
    assert targets.min() >= 0
    np.testing.assert_allclose(targets.sum(1), 1, rtol=0, atol=FLOAT32_ROUNDING)
    # what one of a pair gives away, the other receives
    np.testing.assert_allclose(
        targets.reshape(pairs, 2, classes).sum((0, 1))[np.unique(labels)],
        (
            (1 - smoothing) * np.bincount(labels, minlength=classes)
            + smoothing * 2 * pairs / classes
        )[np.unique(labels)],
        rtol=0,
        atol=FLOAT32_ROUNDING,
    )


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.floats(0.3, 1))
def test_fitted_images_have_the_size(seed, height, width, size, crop):
    fitted = fit_image(random_image(seed, height, width, 3), size, crop)
    assert fitted.shape == (size, size, 3)
    assert fitted.dtype == np.uint8


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**70),
    epoch=st.integers(0, 1000),
    start=st.integers(0, 3),
    processes=st.sampled_from([1, 2, 3]),
    mixup=st.sampled_from([0.0, 0.8]),
    cutmix=st.sampled_from([0.0, 1.0]),
)
def test_batches_depend_on_seed_epoch_and_step_alone(seed, epoch, start, processes, mixup, cutmix):
    split = Split(
        images=random_image(0, 53 * 5, 5, 1).reshape(53, 5, 5, 1), labels=np.arange(53) % 7
    )
    augment = AugmentConfig(
        crop_scale=(0.5, 1), flip=0.5, rand_augment_ops=1, erasing=0.5, mixup=mixup, cutmix=cutmix
    )

    def images(shard: tuple[int, int], first: int) -> np.ndarray:
        made = TrainBatches(
            split,
            augment,
            DataConfig(workers=0),
            batch_size=12,
            seed=seed,
            classes=7,
            shard=shard,
        )
        return np.stack([batch.images for batch in made.batches(epoch, first)])

    shards = [images((process, processes), start) for process in range(processes)]
    np.testing.assert_array_equal(np.concatenate(shards, 1), images((0, 1), 0)[start:])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF"])
@settings(max_examples=100, deadline=None)
@given(shares, shares, st.binary(max_size=9))
def test_no_bytes_break_the_decoder(kind, start, stop, inserted):
    """Whatever is cut out of a picture or put into it, it is decoded or refused."""
    buffer = io.BytesIO()
    Image.fromarray(random_image(0, 7, 5, 3)).save(buffer, kind)
    whole = buffer.getvalue()
    damaged = whole[: int(start * len(whole))] + inserted + whole[int(stop * len(whole)) :]
    sentence = ""
    try:
        decode_image(damaged, channels=3, where="the picture")
    except UserError as error:
        sentence = str(error)
    assert sentence == "" or sentence.startswith("the picture ")
