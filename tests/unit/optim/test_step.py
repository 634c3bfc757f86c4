"""One update, as it is compiled."""

import jax
import jax.numpy as jnp

from mpcvit.arch import Architecture
from mpcvit.config import load_config
from mpcvit.data import Batch
from mpcvit.optim.devices import Devices
from mpcvit.optim.step import initial_state, make_step
from mpcvit.train.supervised import Supervised
from tests.unit.test_config import TINY


def test_devices_wait_for_each_other_once():
    """Loss, metrics and every gradient travel together: a message each took most of the time."""
    config = load_config(TINY)
    model, images = config.model, config.train.batch_size
    task = Supervised(
        config=config,
        architecture=Architecture.uniform(model.attention, depth=model.depth, heads=model.heads),
        classes=tuple("0123456789"),
        data_fingerprint="",
    )
    batch = Batch(
        images=jnp.zeros((images, model.image_size, model.image_size, model.channels)),
        targets=jnp.zeros((images, model.classes)),
        labels=jnp.zeros((images,), jnp.int32),
        places=jnp.zeros((images,), jnp.int32),
    )
    assert jax.device_count() == 2
    step = make_step(task, config, 1, Devices())
    text = step.lower(initial_state(task, config, 1), task.frozen(), batch).as_text()
    assert text.count("stablehlo.all_reduce") == 1
