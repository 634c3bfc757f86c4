"""What tells one run from another."""

from functools import cache

import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import load_config
from mpcvit.cost.estimate import estimate
from mpcvit.kinds import table
from mpcvit.search.task import Search
from mpcvit.train.state import identify
from mpcvit.train.supervised import Supervised
from tests.configs import TINY
from tests.unit.train.test_distilled import make_task, make_teacher


@cache
def teacher(depth):
    return make_teacher(load_config(TINY, [f"model.depth={depth}"]))


def supervised(config):
    return Supervised(
        config=config,
        architecture=Architecture.uniform(table.SCALING, depth=config.model.depth, heads=2),
        classes=tuple("0123456789"),
        data_fingerprint="",
    )


def distilled(config):
    return make_task(config, teacher(config.model.depth))


def searching(config):
    return Search(config=config, latency=estimate(config.model), data_fingerprint="")


@pytest.mark.parametrize(
    ("setting", "readers"),
    [
        ("train.learning_rate=0.1", {supervised, distilled, searching}),
        ("seed=7", {supervised, distilled, searching}),
        ("distill.temperature=2.0", {distilled}),
        ("search.latency_weight=0.1", {searching}),
        ("data.workers=3", set()),
        ("data.validation_images=3", set()),
        ("data.train_images=3", set()),  # but by the fingerprint of what remains
        ("distributed.coordinator=hostA:9000", set()),
        ("name=other", set()),
    ],
)
def test_a_run_is_known_by_the_settings_that_its_task_reads(setting, readers):
    one, other = load_config(TINY), load_config(TINY, [setting])
    for make in (supervised, distilled, searching):
        differs = identify(one, make(one).identity()) != identify(other, make(other).identity())
        assert differs == (make in readers), make.__name__
