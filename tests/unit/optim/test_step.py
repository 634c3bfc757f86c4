"""One update, as it is compiled."""

import jax

from mpcvit.config import load_config
from mpcvit.optim.devices import Devices
from mpcvit.optim.step import _empty_batch, initial_state, make_step
from tests.unit.optim.test_state import supervised
from tests.unit.test_config import TINY


def test_devices_wait_for_each_other_once():
    """Loss, metrics and every gradient travel together: a message each took most of the time."""
    config = load_config(TINY)
    task = supervised(config)
    assert jax.device_count() == 2
    step = make_step(task, config, 1, Devices())
    text = step.lower(initial_state(task, config, 1), task.frozen(), _empty_batch(config)).as_text()
    assert text.count("stablehlo.all_reduce") == 1
