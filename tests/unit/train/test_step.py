"""One update, as it is compiled."""

import jax

from mpcvit.artifacts.config import load_config
from mpcvit.train.devices import Devices
from mpcvit.train.step import _empty_batch, initial_state, make_step
from tests.configs import TINY
from tests.unit.train.test_state import supervised


def test_devices_wait_for_each_other_once():
    """Loss, metrics and every gradient travel together: a message each took most of the time."""
    config = load_config(TINY)
    task = supervised(config)
    assert jax.device_count() == 2
    step = make_step(task, config, 1, Devices())
    text = step.lower(initial_state(task, config, 1), task.frozen(), _empty_batch(config)).as_text()
    assert text.count("stablehlo.all_reduce") == 1
