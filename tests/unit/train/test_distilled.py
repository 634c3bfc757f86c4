"""Distillation: its terms, its switches, and the teachers it refuses."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import DataConfig, Pooling, load_config
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.data import Batch, load_dataset, normalisation, normalise
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.vit import ViT
from mpcvit.train.distilled import (
    Distilled,
    _precompute_if_fixed,
    precompute_outputs,
    refuse_teacher,
    retrain,
)
from mpcvit.train.evaluate import divergence, token_distance
from tests import reference
from tests.configs import TINY
from tests.models import perturbed_parameters
from tests.tolerances import F32, assert_close

K = table
RNG = jax.random.key(0)
CLASSES = tuple("0123456789")
QUIET = ("model.attention_dropout=0.0", "model.stochastic_depth=0.0")


def configure(*overrides, depth=1):
    # one block has every operation of many, and compiles in half the time
    return load_config(TINY, [*QUIET, f"model.depth={depth}", *overrides])


def make_teacher(config, *, data=None, classes=CLASSES):
    model = config.model
    architecture = Architecture.uniform(K.SOFTMAX, depth=model.depth, heads=model.heads)
    return Checkpoint(
        model=model,
        architecture=architecture,
        data=data or config.data,
        classes=classes,
        parameters=perturbed_parameters(model, architecture, seed=5),
        provenance=Provenance(origin="trained", environment=Environment.current()),
    )


def make_task(config, teacher):
    return Distilled(
        config=config,
        architecture=Architecture.uniform(K.SCALING, depth=config.model.depth, heads=2),
        classes=CLASSES,
        data_fingerprint="",
        teacher=teacher,
    )


def random_batch(size=6):
    rng = np.random.default_rng(0)
    return Batch(
        images=jnp.asarray(rng.standard_normal((size, 8, 8, 1)), jnp.float32),
        targets=jnp.asarray(rng.dirichlet(np.ones(10), size), jnp.float32),
        labels=jnp.zeros(size, jnp.int32),
        indices=jnp.arange(size),
    )


def log_softmax(z):
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def test_terms_against_numpy():
    rng = np.random.default_rng(1)
    student, teacher = 3 * rng.standard_normal((2, 11, 7))
    p, q = (log_softmax(z / 2.5) for z in (teacher, student))
    expected = (np.exp(p) * (p - q)).sum(axis=1)
    single = [jnp.asarray(z, jnp.float32) for z in (student, teacher)]
    assert_close(divergence(*single, 2.5), expected, F32)
    assert (expected > 0.01).all()
    one, other = rng.standard_normal((2, 5, 3, 7))
    expected = ((one - other) ** 2).mean(axis=(1, 2))
    single = [jnp.asarray(x, jnp.float32) for x in (one, other)]
    assert_close(token_distance(*single), expected, F32)


ABLATION = ((1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1), (0.5, 2, 3))


@pytest.mark.parametrize("weights", ABLATION)
def test_loss_adds_up_its_weighted_terms(weights):
    names = ("ce", "logits", "feature")
    settings = [
        f"distill.{name}_weight={weight}" for name, weight in zip(names, weights, strict=True)
    ]
    config = configure(*settings, "distill.temperature=2.0")
    task = make_task(config, make_teacher(config))
    batch = random_batch()
    loss, (metrics, _) = jax.jit(task.loss)(
        task.init(0), task.frozen(), batch, jax.random.key(0), 0.0
    )
    used = {name: weight for name, weight in zip(names, weights, strict=True) if weight}
    assert metrics.keys() == {*used, "top1"}  # what is switched off is not computed
    expected = sum(weight * float(metrics[name]) / 6 for name, weight in used.items())
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_a_student_equal_to_its_teacher_has_nothing_to_learn_from_it():
    config = configure("distill.ce_weight=0.0")
    teacher = make_teacher(config)
    task = replace(make_task(config, teacher), architecture=teacher.architecture)
    parameters = {"student": teacher.parameters}
    gradient_of = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    (loss, _), gradient = gradient_of(
        parameters, task.frozen(), random_batch(), jax.random.key(0), 0.0
    )
    assert float(loss) == pytest.approx(0, abs=1e-6)
    assert all(float(jnp.abs(leaf).max()) < 1e-4 for leaf in jax.tree.leaves(gradient))


def test_another_width_is_projected():
    config = configure()
    task = make_task(config, make_teacher(configure("model.width=24", depth=3)))
    parameters = task.init(0)
    assert parameters["projection"]["kernel"].shape == (16, 24)
    gradient_of = jax.jit(jax.grad(lambda *x: task.loss(*x)[0]))
    gradient = gradient_of(parameters, task.frozen(), random_batch(), RNG, 0.0)
    assert float(jnp.abs(gradient["projection"]["kernel"]).max()) > 0
    assert "projection" not in make_task(config, make_teacher(config)).init(0)


def test_merged_tokens_are_compared_with_merged_ones():
    """A student of 9 tokens learns the means of its teacher's 17."""
    config = configure("model.patch_size=2", "model.layer_tokens=[17, 9]", depth=2)
    teacher = make_teacher(configure("model.patch_size=2"))
    task = make_task(config, teacher)
    parameters, batch = task.init(0), random_batch()
    _, (metrics, _) = jax.jit(task.loss)(parameters, task.frozen(), batch, RNG, 0.0)

    def tokens(model, architecture, parameters):
        vit = ViT(model, architecture)
        return np.asarray(jax.jit(vit.apply)({"params": parameters}, batch.images)[1]["features"])

    ours = tokens(config.model, task.architecture, parameters["student"])
    theirs = tokens(teacher.model, teacher.architecture, teacher.parameters)
    assert (ours.shape[1], theirs.shape[1]) == (9, 17)
    merged = np.stack([reference.merge_pairs(image, teacher.model) for image in theirs])
    assert_close(metrics["feature"], np.square(ours - merged).mean(axis=(1, 2)).sum(), F32)


def load_digits(config):
    model = config.model
    return load_dataset(
        config.data, image_size=model.image_size, channels=model.channels, classes=model.classes
    )


def test_remembered_teacher_outputs_give_the_same_loss():
    config = configure("model.attention_dropout=0.0", "model.stochastic_depth=0.0")
    teacher, dataset = make_teacher(config), load_digits(config)
    outputs = precompute_outputs(teacher, dataset.train, jnp.float32)
    assert outputs.logits.shape == (len(dataset.train), 10)
    assert outputs.tokens.shape == (len(dataset.train), 5, 16)
    indices = np.array([3, 1400, 0, 77, 77, 500])
    images = normalise(
        np.asarray(dataset.train.images)[indices], *normalisation((0.3,), (0.37,), 1)
    )
    batch = random_batch()._replace(images=jnp.asarray(images), indices=jnp.asarray(indices))
    losses = []
    for task in (
        make_task(config, teacher),
        replace(make_task(config, teacher), precomputed=outputs),
    ):
        loss, (metrics, _) = jax.jit(task.loss)(
            task.init(0), task.frozen(), batch, jax.random.key(0), 0.0
        )
        losses.append(float(loss))
        assert float(metrics["logits"]) > 0
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_outputs_are_remembered_only_where_images_stay_the_same(monkeypatch):
    still = ("augment.crop_scale=[1.0, 1.0]", "augment.rand_augment_ops=0", "augment.erasing=0.0")
    unmixed = ("augment.mixup=0.0", "augment.cutmix=0.0")
    config = configure(*still, *unmixed)
    dataset, teacher = load_digits(config), make_teacher(config)
    assert _precompute_if_fixed(config, dataset.train, teacher) is not None
    assert _precompute_if_fixed(configure(*still), dataset.train, teacher) is None
    assert _precompute_if_fixed(configure(*unmixed), dataset.train, teacher) is None
    monkeypatch.setattr("mpcvit.train.distilled._MOST_PRECOMPUTED_BYTES", 1000)
    assert _precompute_if_fixed(config, dataset.train, teacher) is None


def test_retrain_learns_from_the_teacher_alone(tmp_path):
    """Without labels, the student must come to predict what the teacher does."""
    config = configure(
        *("distill.ce_weight=0.0", "distill.epochs=6", "train.learning_rate=0.01"),
        *("augment.mixup=0.0", "augment.cutmix=0.0", "train.batch_size=32"),
        depth=2,
    )
    dataset = load_digits(config)
    teacher = make_teacher(config, classes=dataset.classes)
    architecture = Architecture.uniform(K.RELU_SOFTMAX, depth=2, heads=2)
    retrain(config, dataset, tmp_path, architecture=architecture, teacher=teacher)
    from mpcvit.train.log import read_log

    rows = read_log(tmp_path)
    assert len(rows) == 6  # distill.epochs, not train.epochs
    assert rows[-1]["train_logits"] < 0.5 * rows[0]["train_logits"]
    assert rows[-1]["train_feature"] < 0.9 * rows[0]["train_feature"]


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        (["model.patch_size=2"], {}, "patches of 2 pixels, but the model patches of 4"),
        (["model.image_size=12"], {}, "images of 12 pixels"),
        (["model.classes=7"], {"classes": CLASSES[:7]}, "knows 7 classes"),
        ([], {"classes": tuple("abcdefghij")}, "begin with 'a'"),
        (["model.pooling=mean"], {}, "pools by mean, but the model by class"),
        ([], {"data": DataConfig(mean=(0.1,), std=(1.0,))}, "normalised by mean"),
    ],
)
def test_foreign_teachers_are_refused(changes, settings, message):
    teacher = make_teacher(configure(*changes), **settings)
    assert configure().model.pooling is Pooling.CLASS
    refuse_teacher(configure(), CLASSES, make_teacher(configure()))
    with pytest.raises(UserError, match=message):
        refuse_teacher(configure(), CLASSES, teacher)
