"""Every kind of the table trains and lowers, and so does a kind that only a test knows."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import Pooling, load_config
from mpcvit.attention.kind_math import KindMath, Step
from mpcvit.classifier import Classifier
from mpcvit.cost.estimate import estimate
from mpcvit.data.batches import Batch
from mpcvit.kinds import costs, table
from mpcvit.lowering.calibrate import relative_error
from mpcvit.lowering.lower import lower
from mpcvit.lowering.sites import site_label
from mpcvit.model.vit import ViT
from mpcvit.train.devices import Devices
from mpcvit.train.step import initial_state, make_step
from mpcvit.train.supervised import Supervised
from tests.configs import TINY
from tests.marks import mostly_long
from tests.models import (
    perturbed_parameters,
    random_images,
    random_pixels,
    rows_of_every_kind,
    small_checkpoint,
    small_config,
)

every_kind = pytest.mark.parametrize("kind", table.KINDS.values(), ids=str)


@every_kind
def test_gradients_are_finite(kind):
    """Without scores, rows of several kinds sum to zero, and eps alone guards the division."""
    config = small_config(depth=1)
    architecture = Architecture.uniform(kind, depth=1, heads=3, mlp=MlpForm.FUSED)
    parameters = jax.tree.map(jnp.asarray, perturbed_parameters(config, architecture))
    images = random_images(config, 2)

    @jax.jit
    @jax.grad
    def gradients(parameters):
        logits, _ = ViT(config, architecture).apply({"params": parameters}, images, train=True)
        return jnp.square(logits).sum()

    found = gradients(parameters)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    # every query, key and value learns
    assert found["blocks_0"]["attention"]["qkv"]["kernel"].any(axis=0).all()
    qkv = parameters["blocks_0"]["attention"]["qkv"]
    qkv["kernel"] = qkv["kernel"].at[:, : 2 * config.width].set(0.0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients(parameters)))


def assert_lowers(heads, **changes):
    """Compare the emulation with the trained network, on images that calibration did not see."""
    config = small_config(**{"depth": 1, "mlp_ratio": 1.2, "pooling": Pooling.MEAN, **changes})
    architecture = Architecture(layers=(LayerArchitecture(heads=heads, mlp=MlpForm.FUSED),))
    checkpoint = small_checkpoint(config, architecture)
    calibration = list(random_pixels(config, 32))
    program = lower(checkpoint, calibration, "semi2k", error_budget=0.05, guard=False)
    plain = Classifier(checkpoint)
    images = plain.preprocess(list(random_pixels(config, 8, seed=5)))
    assert relative_error(program(images), plain(images)) <= 0.1
    return program


def assert_approximated(program, kinds):
    layer = site_label(0, "")
    approximated = {label.removeprefix(layer) for label in program.plan if layer in label}
    sites = {site for kind in kinds for site in kind.sites}
    # a cube that no approximation is close to stays exact
    assert approximated - {"norm1", "norm2"} | {"cube"} == sites | {"cube"}


def test_all_kinds_lower_together():
    rows = tuple(rows_of_every_kind(5))
    program = assert_lowers(rows, image_size=4, pooling=Pooling.CLASS_MEAN)
    assert_approximated(program, table.KINDS.values())


@pytest.mark.parametrize("kind", mostly_long(table.KINDS.values()))
def test_lowers(kind):
    """One by one, which says whose mistake it is; the mixed network has them all."""
    assert_approximated(assert_lowers((kind,) * 3), [kind])


@pytest.fixture
def made_up(monkeypatch):
    """Register a row and a file: `w = relu(a s)^2 / (sum relu(a s)^2 + eps)`."""
    kind = table.Kind(
        name="made_up",
        symbol="Z",
        marks=table.Marks(monotone=True, non_negative=True, normalised=True),
        sites=("denominator",),
        eps_fields=("attention_eps",),
        constants={"slope": table.Constant(default=0.5)},
        cost=lambda model: costs.by_scores(model, costs.RELU, costs.PRODUCT, costs.DIVISION),
    )

    def weights(scores, context):
        powers = jnp.square(jax.nn.relu(context.config.constant("slope") * scores))
        return powers / (powers.sum(axis=-1, keepdims=True) + context.config.attention_eps)

    def lowered(scores, context):
        (positive,) = yield Step("relu", [context.config.constant("slope") * scores])
        (powers,) = yield Step("square", [positive])
        (inverses,) = yield Step("denominator", [powers.sum(axis=-1)])
        return powers, inverses

    file = SimpleNamespace(MATH=KindMath(weights=weights, lowered=lowered))
    monkeypatch.setitem(table.KINDS, kind.name, kind)
    monkeypatch.setitem(sys.modules, f"mpcvit.attention.{kind.name}", file)
    return kind


def test_a_made_up_kind_trains(made_up):
    """From a configuration that names it: one step, which moves its queries."""
    config = load_config(TINY, ["model.attention=made_up", "model.constants.slope=0.7"])
    model = config.model
    task = Supervised(
        config=config,
        architecture=Architecture.uniform(model.attention, depth=model.depth, heads=model.heads),
        classes=tuple("0123456789"),
        data_fingerprint="",
    )
    state = initial_state(task, config, 1)
    before = queries_of(state)
    labels = np.arange(config.train.batch_size, dtype=np.int32) % model.classes
    batch = Batch(
        images=np.asarray(random_images(model, len(labels))),
        targets=np.eye(model.classes, dtype=np.float32)[labels],
        labels=labels,
        indices=labels,
    )
    state, loss = make_step(task, config, 1, Devices())(state, task.frozen(), batch)
    assert np.isfinite(loss)
    assert np.isfinite(queries_of(state)).all()
    assert not np.array_equal(queries_of(state), before)


def queries_of(state):
    kernel = np.array(state.parameters["blocks_0"]["attention"]["qkv"]["kernel"])
    return kernel[:, : kernel.shape[1] // 3]


def test_a_made_up_kind_lowers(made_up):
    assert_lowers((made_up,) * 3)


def test_a_made_up_kind_is_priced_and_drawn(made_up):
    architecture = Architecture.uniform(made_up, depth=2, heads=3)
    assert Architecture.decoded(architecture.encoded(), "here") == architecture
    assert "Z = made_up" in architecture.picture()
    assert estimate(small_config()).price(architecture).exchanges > 0
