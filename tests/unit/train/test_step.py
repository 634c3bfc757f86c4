"""One update, as it is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.config import load_config
from mpcvit.data import Batch
from mpcvit.search.task import Search
from mpcvit.train.devices import Devices
from mpcvit.train.statistics import Learnt
from mpcvit.train.step import _empty_batch, _make_gradients, initial_state, make_step
from tests.configs import TINY
from tests.marks import mostly_long
from tests.searches import random_costs
from tests.unit.train.test_state import distilled, searching, supervised

ONE = "model.depth=1"  # which has every operation of many, and compiles in half the time
STILL = (ONE, "model.attention_dropout=0.0", "model.stochastic_depth=0.0", "train.batch_size=16")
# Sums of float32 in another order: each of the tens of terms is rounded by 6e-8 of itself.
ROUNDING = 1e-5


def test_devices_wait_for_each_other_once():
    """Loss, metrics and every gradient travel together: a message each took most of the time."""
    config = load_config(TINY)
    task = supervised(config)
    assert jax.device_count() == 2
    step = make_step(task, config, 1, Devices())
    text = step.lower(initial_state(task, config, 1), task.frozen(), _empty_batch(config)).as_text()
    assert text.count("stablehlo.all_reduce") == 1


def gradients(make_task, *settings, change=lambda parameters: parameters):
    """Return loss, statistics and gradients of a batch of random images."""
    config = load_config(TINY, settings)
    rng, size, task = np.random.default_rng(0), config.train.batch_size, make_task(config)
    batch = Batch(
        images=rng.standard_normal((size, 8, 8, 1), np.float32),
        targets=rng.dirichlet(np.ones(10), size).astype(np.float32),
        labels=np.zeros(size, np.int32),
        indices=np.arange(size, dtype=np.int32),
    )
    function = jax.jit(_make_gradients(task, config, 1, Devices()))
    parameters = change(task.init(0))
    loss, outcome, found = function(parameters, task.frozen(), np.int32(0), batch)
    return jax.device_get((loss, outcome.statistics, found))


def furthest(one, other):
    """Return the largest difference of two trees, in parts of each array's largest entry."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    parts = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-3)), one, other
    )
    return max(jax.tree.leaves(parts))


@pytest.mark.parametrize("make_task", mostly_long([supervised, distilled, searching], supervised))
def test_micro_batches_have_the_gradients_of_the_batch(make_task):
    """However many images a device takes at once, gradients are means over all of them."""
    whole = gradients(make_task, *STILL, "train.piece_size=8")
    assert furthest(whole, gradients(make_task, *STILL, "train.piece_size=2")) < ROUNDING
    doubled = jax.tree.map(lambda x: 1.001 * x, whole)
    assert furthest(whole, doubled) > ROUNDING


@pytest.mark.parametrize("make_task", mostly_long([supervised, distilled], supervised))
def test_blocks_that_are_computed_again_have_the_same_gradients(make_task):
    """Also where dropout draws at random, and where batch norms report their statistics."""
    settings = (ONE, "train.batch_size=16", "model.norm=batch", "train.norm_transition_epochs=2")
    held = gradients(make_task, *settings)
    again = gradients(make_task, *settings, "train.remat=true")
    assert held[1], "batch norms have statistics"
    assert furthest(held, again) < ROUNDING


def searching_norms(config):
    return Search(config=config, latency=random_costs(config.model), data_fingerprint="")


OUTLIERS = {supervised: (), distilled: ("student",), searching_norms: ()}


@pytest.mark.parametrize("make_task", mostly_long(list(OUTLIERS), supervised))
def test_outliers_are_part_of_a_loss_that_weighs_them(make_task):
    """Twice the weight, twice the part; its gradient draws large scales of batch norms in."""
    is_search = make_task is searching_norms
    norms = 'search.choices=["attention","norm"]' if is_search else "model.norm=batch"
    far = jnp.asarray(4.0)  # many of a bell curve that is four times as wide lie beyond `FAR`

    def widen(parameters):
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: far * leaf if path[-1].key == "scale" else leaf, parameters
        )

    none, once, twice = (
        gradients(make_task, *STILL, norms, f"train.outlier_weight={weight}", change=widen)
        for weight in (0.0, 0.5, 1.0)
    )
    part = once[0] - none[0]
    assert part > 0.1
    assert twice[0] - none[0] == pytest.approx(2 * part, rel=1e-3)  # a difference of float32
    for key in OUTLIERS[make_task]:
        none, once = ((*own[:2], own[2][key]) for own in (none, once))
    drawn = once[2]["blocks_0"]["norm1"]["scale"] - none[2]["blocks_0"]["norm1"]["scale"]
    assert (drawn > 0).all()


def test_outliers_without_a_weight_cost_nothing():
    """Not even where they are no numbers."""
    learnt = Learnt(jnp.zeros(()), {}, {}, outliers=jnp.asarray(jnp.inf))
    assert supervised(load_config(TINY)).outlier_loss(learnt) == 0


def test_blocks_are_computed_again_only_if_asked():
    def text(*settings):
        config = load_config(TINY, [ONE, "train.batch_size=16", *settings])
        task = supervised(config)
        state = initial_state(task, config, 1)
        step = make_step(task, config, 1, Devices())
        return step.lower(state, task.frozen(), _empty_batch(config)).as_text()

    assert "optimization_barrier" not in text()
    assert "optimization_barrier" in text("train.remat=true")
