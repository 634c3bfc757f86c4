"""The search's loss: its latency term, and the gradients of alpha and beta."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.choices import CostForm
from mpcvit.artifacts.config import load_config
from mpcvit.cost.estimate import estimate
from mpcvit.data import Batch
from mpcvit.kinds import table
from mpcvit.search.objective import LayerPrice, Prices, expected_seconds
from mpcvit.search.task import Search
from tests.configs import TINY


def make_task(*settings):
    config = load_config(
        TINY, ["model.attention_dropout=0.0", "model.stochastic_depth=0.0", *settings]
    )
    return Search(config=config, latency=estimate(config.model), data_fingerprint="")


def random_batch(size=6):
    rng = np.random.default_rng(0)
    return Batch(
        images=jnp.asarray(rng.standard_normal((size, 8, 8, 1)), jnp.float32),
        targets=jnp.asarray(rng.dirichlet(np.ones(10), size), jnp.float32),
        labels=jnp.zeros(size, jnp.int32),
        indices=jnp.arange(size),
    )


def test_seconds_against_numpy():
    rng = np.random.default_rng(0)
    choices = [rng.random(shape) for shape in ((3, 1), (3, 5))]
    prices = [LayerPrice(shared_s=2.0, own_s=0.5), LayerPrice(shared_s=0.25, own_s=3.0)]
    single = [jnp.asarray(choice, jnp.float32) for choice in choices]
    additive = sum(p.total_s * c.mean() for p, c in zip(prices, choices, strict=True))
    shared = sum(
        p.shared_s * np.sqrt((c**2).mean()) + p.own_s * c.mean()
        for p, c in zip(prices, choices, strict=True)
    )
    assert float(expected_seconds(single, prices, CostForm.ADDITIVE)) == pytest.approx(additive)
    assert float(expected_seconds(single, prices, CostForm.SHARED_ROUNDS)) == pytest.approx(shared)


@pytest.mark.parametrize("form", CostForm)
def test_all_kept_costs_what_the_table_says(form):
    task = make_task("search.activation=token")
    prices = Prices.of(task.config.search, task.latency)
    ones = [jnp.ones((2, 1))] * 2
    expected = sum(
        task.latency.seconds(task.latency.attention_cost(i, table.RELU_SOFTMAX).total(2))
        for i in range(2)
    )
    assert float(expected_seconds(ones, prices.attention, form)) == pytest.approx(expected)
    gelu = task.latency.mlp_cost(0, MlpForm.ACTIVATED).total(5)
    bare = task.latency.mlp_cost(0, MlpForm.LINEAR).total(5)
    difference = task.latency.seconds(gelu) - task.latency.seconds(bare)
    assert prices.activation[0].total_s == pytest.approx(difference)


def test_shared_rounds_reward_the_last_head_of_a_layer_most():
    """Dropping a layer's only head saves its exchanges; one of many saves bytes alone."""
    prices = [LayerPrice(shared_s=1.0, own_s=0.1)]
    slope = jax.grad(lambda a: expected_seconds([a], prices, CostForm.SHARED_ROUNDS))
    alone = slope(jnp.array([1.0, 0.0, 0.0, 0.0]))
    together = slope(jnp.array([1.0, 1.0, 1.0, 1.0]))
    assert float(alone[0]) > 1.9 * float(together[0])
    gone = slope(jnp.zeros(4))
    assert np.isfinite(gone).all()


def test_eta_follows_the_latencies_unless_given():
    task = make_task("search.activation=token", "search.latency_weight=1e-3")
    prices = Prices.of(task.config.search, task.latency)
    ratio = prices.activation[0].total_s / prices.attention[0].total_s
    assert prices.activation_weight(task.config.search) == pytest.approx(1e-3 * ratio)
    given = replace(task.config.search, activation_weight=0.5)
    assert prices.activation_weight(given) == 0.5


def test_penalty_is_weighed_by_lambda_and_eta():
    task = make_task(
        *("search.activation=token", "search.latency_weight=0.5"),
        "search.activation_weight=0.25",
    )
    prices = Prices.of(task.config.search, task.latency)
    penalty, seconds = task.penalty(task.init(0))
    attention_s = sum(price.total_s for price in prices.attention)
    activation_s = sum(price.total_s for price in prices.activation)
    assert float(penalty) == pytest.approx(0.5 * attention_s + 0.25 * activation_s)
    assert float(seconds) == pytest.approx(attention_s + activation_s)


@pytest.mark.parametrize("form", CostForm)
def test_gradients_against_finite_differences(form):
    """Central differences of a float32 loss near 2 at 1e-2 carry an error near
    2 * 2^-23 / 1e-2 = 2e-5, and a curvature term of some 1e-4 times the slope."""
    task = make_task(
        *("search.activation=token", f"search.cost={form.value}"),
        *("search.granularity=row", "search.latency_weight=1e-2"),
    )
    rng = np.random.default_rng(3)
    # weights far from their small start, so that both kinds of attention matter
    parameters = jax.tree.map(
        lambda x: x + 0.3 * rng.standard_normal(x.shape).astype(np.float32), task.init(0)
    )
    for block in ("blocks_0", "blocks_1"):
        for part, name in (("attention", "alpha"), ("mlp", "beta")):
            leaf = parameters[block][part][name]
            parameters[block][part][name] = 0.2 + 0.6 * rng.random(leaf.shape, np.float32)
    batch = random_batch()
    loss = jax.jit(lambda p: task.loss(p, {}, batch, jax.random.key(0), 0.0)[0])
    gradient = jax.grad(lambda p: task.loss(p, {}, batch, jax.random.key(0), 0.0)[0])(parameters)
    checked = []
    for block, part, name, place in (
        ("blocks_0", "attention", "alpha", (0, 0)),
        ("blocks_0", "attention", "alpha", (1, 3)),
        ("blocks_1", "attention", "alpha", (1, 0)),
        ("blocks_0", "mlp", "beta", (0,)),
        ("blocks_1", "mlp", "beta", (0,)),
    ):
        found = float(gradient[block][part][name][place])
        ends = []
        for step in (1e-2, -1e-2):
            moved = jax.tree.map(np.array, parameters)
            moved[block][part][name][place] += step
            ends.append(float(loss(moved)))
        expected = (ends[0] - ends[1]) / 2e-2
        assert found == pytest.approx(expected, abs=1e-4, rel=1e-2)
        checked.append(abs(expected))
    assert max(checked) > 1e-2  # far above the error allowed


def test_projection_keeps_choices_in_range_and_weights_as_they_are():
    task = make_task("search.activation=layer")
    parameters = jax.tree.map(lambda x: 3 * x + 2, task.init(0))
    projected = task.project(parameters)
    assert float(projected["blocks_0"]["attention"]["alpha"].max()) == 1
    assert float(projected["blocks_1"]["mlp"]["beta"].max()) == 1
    assert (projected["head"]["kernel"] == parameters["head"]["kernel"]).all()
    negative = task.project(jax.tree.map(lambda x: x - 9, parameters))
    assert float(negative["blocks_0"]["attention"]["alpha"].min()) == 0
