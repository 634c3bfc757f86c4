"""Short trainings for tests: their data, a way to stop them, and what must be equal."""

import json
import os
import signal

import numpy as np

from mpcvit.codec import encode
from mpcvit.data import load_dataset
from mpcvit.model.checkpoint import flatten_parameters
from mpcvit.train.log import read_log
from mpcvit.train.step import make_step
from mpcvit.train.supervised import Supervised

_steps = {}


def make_step_once(task, config, steps_per_epoch, devices):
    """Make the step of a run on labels, once for all runs with the same settings.

    Tracing it takes most of the time of a run of seconds.
    """
    if type(task) is not Supervised:
        return make_step(task, config, steps_per_epoch, devices)
    settings = encode(config)
    del settings["data"]["path"], settings["train"]["checkpoint_every_minutes"]
    key = json.dumps([settings, task.identity(), steps_per_epoch, devices.count])
    if key not in _steps:
        _steps[key] = make_step(task, config, steps_per_epoch, devices)
    return _steps[key]


def digits(config):
    model = config.model
    return load_dataset(
        config.data, image_size=model.image_size, channels=model.channels, classes=model.classes
    )


class StopAt:
    """Asks the run to stop, as Ctrl-C would, once it has reached a step."""

    def __init__(self, step, number=signal.SIGINT):
        self.step, self.number = step, number

    def on_step(self, event):
        if event.step >= self.step:
            os.kill(os.getpid(), self.number)

    def on_epoch(self, event):
        pass


def assert_same_parameters(one, other):
    one, other = flatten_parameters(one.parameters), flatten_parameters(other.parameters)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def log_without_speed(folder):
    speed = {"images_per_s", "input_wait"}
    return [{k: v for k, v in row.items() if k not in speed} for row in read_log(folder)]
