"""A training that starts from trained parameters: what is taken over, and what is new."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config, TrainConfig
from mpcvit.artifacts.forms import NormForm
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.checkpoint import flatten_parameters
from mpcvit.model.start import resize_positions, start_from
from mpcvit.model.vit import ViT, init_parameters
from mpcvit.train.statistics import layer_share, learn
from mpcvit.train.step import Task
from tests import tolerances
from tests.models import random_images, small_checkpoint, small_config

CONFIG = small_config()
SOFTMAX = Architecture.uniform(table.SOFTMAX, depth=CONFIG.depth, heads=CONFIG.heads)


@pytest.fixture(scope="module")
def source():
    return small_checkpoint(CONFIG, SOFTMAX)


def begin(source, config=CONFIG, classes=None, architecture=SOFTMAX):
    fresh = init_parameters(config, architecture, seed=5)
    return fresh, start_from(source, fresh, config, classes or source.classes)


def test_the_same_network_is_taken_over_whole(source):
    _, start = begin(source)
    found, expected = (flatten_parameters(own.parameters) for own in (start, source))
    assert (start.new, start.resized) == ((), ())
    assert found.keys() == expected.keys() == set(start.taken)
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name])


def test_classes_are_taken_by_their_names(source):
    classes = ("class 4", "class 1")
    _, start = begin(source, replace(CONFIG, classes=2), classes)
    head, theirs = start.parameters["head"], source.parameters["head"]
    np.testing.assert_array_equal(head["kernel"], theirs["kernel"][:, [4, 1]])
    np.testing.assert_array_equal(head["bias"], theirs["bias"][[4, 1]])


def test_an_unknown_class_makes_a_new_head(source):
    fresh, start = begin(source, classes=(*source.classes[:-1], "another"))
    assert set(start.new) == {"head.kernel", "head.bias"}
    np.testing.assert_array_equal(start.parameters["head"]["kernel"], fresh["head"]["kernel"])
    assert "new: head" in str(start)


def test_positions_are_resized_to_another_image(source):
    _, start = begin(source, replace(CONFIG, image_size=10))
    position = start.parameters["embed"]["position"]
    assert start.resized == ("embed.position",)
    assert position.shape == (26, CONFIG.width)
    np.testing.assert_array_equal(position[0], source.parameters["embed"]["position"][0])


def test_resized_positions_keep_a_slope():
    rows, columns = np.indices((4, 4))
    slope = np.stack([rows, columns, rows + 2 * columns], axis=-1).reshape(16, 3)
    wide = resize_positions(slope.astype(np.float32), 64, 64).reshape(8, 8, 3)
    inner = wide[3:5, 3:5]
    np.testing.assert_allclose(np.diff(inner[..., 0], axis=0), 0.5, atol=1e-5)
    np.testing.assert_allclose(np.diff(inner[..., 1], axis=1), 0.5, atol=1e-5)
    np.testing.assert_allclose(inner[..., 2], inner[..., 0] + 2 * inner[..., 1], atol=1e-5)


def test_batch_norms_take_scales_and_get_new_statistics(source):
    _, start = begin(source, replace(CONFIG, norm=NormForm.BATCH))
    assert all(name.rpartition(".")[2] in ("mean", "variance") for name in start.new)
    assert start.new
    np.testing.assert_array_equal(
        start.parameters["norm"]["scale"], source.parameters["norm"]["scale"]
    )


def test_norms_are_converted_gradually(source):
    """A start with batch norms is at first the network that it came from."""
    config = replace(CONFIG, norm=NormForm.BATCH)
    _, start = begin(source, config)
    images, rng = random_images(config, 5), jax.random.key(0)
    settings = TrainConfig(epochs=4, norm_transition_epochs=2)
    begun, theirs = jax.tree.map(jnp.asarray, (start.parameters, source.parameters))

    def logits(epoch):
        share = None if epoch is None else layer_share(settings, jnp.float32(epoch))
        return learn(ViT(config, SOFTMAX), begun, images, rng, share)[0]

    before = ViT(CONFIG, SOFTMAX).apply({"params": theirs}, images)[0]
    np.testing.assert_allclose(logits(0), before, atol=tolerances.F32)
    ways = [float(jnp.abs(logits(epoch) - before).max()) for epoch in (0, 0.02, 2)]
    assert ways[0] < ways[1] < ways[2]
    np.testing.assert_allclose(logits(2), logits(None), atol=tolerances.F32)
    np.testing.assert_allclose(logits(3), logits(None), atol=tolerances.F32)


def test_a_start_with_batch_norms_is_not_converted_again(source):
    """Its batch norms would be layer norms that nobody trained."""
    layered = replace(CONFIG, norm=NormForm.BATCH)
    converted = small_checkpoint(layered, SOFTMAX)
    train = TrainConfig(epochs=4, norm_transition_epochs=2)
    config = Config(model=layered, train=train, data=converted.data)

    def share(start):
        return Task(config=config, data_fingerprint="", start=start).layer_share(jnp.zeros(()))

    assert share(converted) is None
    assert share(source) == share(None) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"width": 30}, "has model.width = 15, but the configuration has 30: set model.width=15"),
        ({"heads": 5}, "has model.heads = 3"),
        ({"qkv_bias": True}, "has model.qkv_bias = False"),
    ],
)
def test_another_shape_is_refused(source, changes, reason):
    config = replace(CONFIG, **changes)
    with pytest.raises(UserError, match=reason):
        start_from(source, {}, config, source.classes)
