"""Evaluation against plain counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.config import DataConfig
from mpcvit.data import Split
from mpcvit.train.devices import Devices
from mpcvit.train.evaluate import Evaluator

CLASSES, IMAGES, PIXELS = 7, 101, 2 * 2 * 3
DATA = DataConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1))


@pytest.fixture
def split():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (IMAGES, 2, 2, 3)).astype(np.uint8)
    return Split(images=pixels, labels=rng.integers(0, CLASSES, IMAGES).astype(np.int32))


@pytest.mark.parametrize("batch_size", [1, 13, 256])
def test_every_image_counts_once(split, batch_size):
    """Small batches are many at once, which two devices of a CPU must survive."""
    kernel = np.random.default_rng(1).standard_normal((PIXELS, CLASSES)).astype(np.float32)

    def logits(parameters, images):
        return images.reshape(-1, PIXELS) @ parameters

    assert jax.device_count() == 2
    seen = []
    evaluate = Evaluator(logits, Devices(), batch_size)
    result = evaluate(jnp.asarray(kernel), split, DATA, lambda *done: seen.append(done))
    again = evaluate(jnp.asarray(kernel), split, DATA)

    pixels = (split.images / 255 - np.array(DATA.mean)) / np.array(DATA.std)
    expected = pixels.reshape(-1, PIXELS) @ kernel.astype(np.float64)
    order = np.argsort(-expected, axis=1)
    own = split.labels[:, None]
    losses = np.log(np.exp(expected).sum(axis=1)) - np.take_along_axis(expected, own, 1)[:, 0]
    assert result.images == IMAGES
    assert result.top1 == pytest.approx((order[:, :1] == own).any(axis=1).mean())
    assert result.top5 == pytest.approx((order[:, :5] == own).any(axis=1).mean())
    assert result.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert again.top1 == result.top1
    assert seen[-1] == (IMAGES, IMAGES)


def test_images_without_numbers_are_wrong_and_counted(split):
    """They must neither be hits nor make the loss of all others unknown."""
    kernel = np.random.default_rng(1).standard_normal((PIXELS, CLASSES)).astype(np.float32)

    def logits(parameters, images):
        rows = images.reshape(-1, PIXELS)
        return jnp.where(rows[:, :1] > parameters, jnp.nan, rows @ kernel)

    evaluate = Evaluator(logits, Devices(), 13)
    edge = jnp.asarray(float((0.9 - DATA.mean[0]) / DATA.std[0]))
    whole, some = evaluate(jnp.asarray(jnp.inf), split, DATA), evaluate(edge, split, DATA)
    strays = split.images[:, 0, 0, 0] / 255 > 0.9
    kept = Split(images=split.images[~strays], labels=split.labels[~strays])
    known = evaluate(jnp.asarray(jnp.inf), kept, DATA)
    assert (whole.stray, some.stray) == (0, strays.sum())
    assert some.top1 * IMAGES == pytest.approx(known.top1 * known.images)
    assert some.top5 * IMAGES == pytest.approx(known.top5 * known.images)
    assert some.loss == pytest.approx(known.loss, rel=1e-5)
    none = evaluate(jnp.asarray(-jnp.inf), split, DATA)
    assert (none.stray, none.top1, none.top5, none.loss) == (IMAGES, 0, 0, np.inf)
