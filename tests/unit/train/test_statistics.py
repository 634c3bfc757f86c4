"""Batch norms in training: averages, fixed statistics, resuming, and no image that runs away."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.config import load_config
from mpcvit.classifier import Classifier
from mpcvit.lowering.calibrate import relative_error
from mpcvit.lowering.lower import lower
from mpcvit.model.vit import ViT
from mpcvit.train.devices import Devices
from mpcvit.train.log import read_log
from mpcvit.train.loop import StoppedError
from mpcvit.train.statistics import FixedStatistics, follow, layer_share, variance_ratio
from mpcvit.train.supervised import Supervised, train
from tests.configs import TINY
from tests.models import random_pixels
from tests.training import StopAt, assert_same_parameters, digits, log_without_speed

POLYNOMIAL = (
    "model.patch_size=2",
    *("model.norm=batch", "model.activation=quadratic", "model.attention=scaling"),
    *('model.layer_norms=["1.norm2"]', "model.layer_tokens=[17, 9]", "model.head_dim_qk=4"),
    *("train.epochs=2", "train.clip_norm=1.0", "data.validation_images=200"),
    *("model.attention_dropout=0.1", "model.stochastic_depth=0.1"),
)


def configure(*overrides):
    return load_config(TINY, [*POLYNOMIAL, *overrides])


@pytest.fixture(scope="module")
def dataset():
    return digits(configure())


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    config = configure(
        *("train.epochs=12", "augment.mixup=0.0", "augment.cutmix=0.0", "train.batch_size=32"),
        *("train.eval_every_epochs=12", "model.width=32"),
    )
    return train(config, dataset, folder), folder


@pytest.fixture(autouse=True)
def tell_every_step(monkeypatch):
    monkeypatch.setattr("mpcvit.train.loop.REPORT_EVERY_S", 0.0)


def task_of(config, checkpoint):
    return Supervised(
        config=config,
        architecture=checkpoint.architecture,
        classes=checkpoint.classes,
        data_fingerprint="",
    )


def test_running_averages_follow():
    parameters = {"norm": {"scale": 5.0, "mean": 1.0, "variance": 2.0}, "head": 7.0}
    moved = follow(parameters, {"norm": {"mean": 3.0, "variance": 0.0}}, momentum=0.75)
    assert moved == {"norm": {"scale": 5.0, "mean": 1.5, "variance": 1.5}, "head": 7.0}


def test_a_resumed_run_ends_bit_equal_with_its_statistics(dataset, tmp_path):
    config = configure("model.depth=1", "model.layer_norms=[]", "model.layer_tokens=[17]")
    whole = train(config, dataset, tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(config, dataset, tmp_path / "cut", observers=[StopAt(4)])
    resumed = train(config, dataset, tmp_path / "cut", resume=True)
    assert_same_parameters(resumed, whole)
    assert log_without_speed(tmp_path / "cut") == log_without_speed(tmp_path / "whole")


def test_a_run_is_judged_by_validation_images(trained, dataset):
    checkpoint, folder = trained
    row = read_log(folder)[-1]
    assert "test_top1" not in row
    assert row["validation_top1"] == checkpoint.provenance.metrics["validation_top1"]
    assert checkpoint.provenance.top1 > 0.6
    validation = dataset.validation
    images = (validation.images / 255 - checkpoint.data.mean) / checkpoint.data.std
    vit = ViT(checkpoint.model, checkpoint.architecture)
    run = jax.jit(lambda x: vit.apply({"params": checkpoint.parameters}, x)[0])
    right = run(jnp.asarray(images, jnp.float32)).argmax(axis=1) == validation.labels
    assert float(right.mean()) == pytest.approx(row["validation_top1"])
    assert row["variance_ratio"] > 0


def test_fixed_statistics_are_medians_over_training_images(trained, dataset):
    """A run-away batch changes an average, but no median."""
    checkpoint, _ = trained
    config = configure("model.width=32")
    task, devices = task_of(config, checkpoint), Devices()
    fix = FixedStatistics(task.statistics, devices)
    parameters = devices.copy(checkpoint.parameters)
    fixed = fix(parameters, dataset.train, config.data)
    assert_close_trees(fixed, checkpoint.parameters)  # the checkpoint has them already
    pixels = np.array(dataset.train.images)
    places = np.linspace(0, len(pixels) - 1, len(pixels) // 32 * 32).astype(int)
    pixels[places[:1]] = 255  # of the first batch alone
    spoiled = fix(parameters, replace(dataset.train, images=pixels), config.data)
    assert variance_ratio(spoiled, fixed) < 1.05
    moved = follow(parameters, {"norm": {"variance": parameters["norm"]["variance"] * 9}}, 0.5)
    assert variance_ratio(moved, fixed) == pytest.approx(5.0, rel=1e-3)


def assert_close_trees(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_no_image_runs_away(trained, dataset):
    """Odd pictures and test images alike: a kept layer norm bounds what quadratics square."""
    checkpoint, _ = trained
    size = checkpoint.model.image_size
    flat = np.stack([np.full((size, size, 1), level, np.uint8) for level in (0, 127, 255)])
    chess = np.indices((size, size)).sum(axis=0)[None, ..., None] % 2 * np.uint8(255)
    odd = np.concatenate([flat, chess.astype(np.uint8), random_pixels(checkpoint.model, 8)])
    pixels = np.concatenate([dataset.test.images, 255 - dataset.test.images[:50], odd])
    vit = ViT(checkpoint.model, checkpoint.architecture)
    images = jnp.asarray((pixels / 255 - checkpoint.data.mean) / checkpoint.data.std, jnp.float32)
    logits = np.abs(jax.jit(lambda x: vit.apply({"params": checkpoint.parameters}, x)[0])(images))
    largest = logits.max(axis=1)
    assert np.isfinite(largest).all()
    assert int((largest > 10 * np.median(largest)).sum()) == 0


@pytest.mark.long
def test_layer_norms_turn_into_batch_norms_gradually(dataset, tmp_path):
    config = configure("train.norm_transition_epochs=1.0", "train.epochs=1")
    shares = [float(layer_share(config.train, jnp.asarray(t))) for t in (0.0, 0.25, 1.0, 1.5)]
    assert shares == [1.0, 0.75, 0.0, 0.0]
    assert layer_share(configure().train, jnp.zeros(())) is None
    gradual = train(config, dataset, tmp_path / "gradual")
    at_once = train(configure("train.epochs=1"), dataset, tmp_path / "at-once")
    assert gradual.parameter_digest != at_once.parameter_digest


@pytest.mark.long
def test_a_trained_network_is_lowered(trained, dataset):
    """One layer norm is all that is left to approximate."""
    checkpoint, _ = trained
    program = lower(checkpoint, list(dataset.train.images[:256]), "semi2k")
    assert list(program.plan) == ["block 1 norm2"]
    images = program.preprocess(list(dataset.test.images[:64]))
    exact = Classifier(checkpoint)(images)
    assert relative_error(program(images), exact) < 0.02
    assert program.judge(images).trusted.mean() > 0.9
