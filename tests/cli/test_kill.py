"""kill -9 in the middle of a run, then --resume."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.provenance import MODEL_FILE, STATE_FILE
from mpcvit.data import load_dataset
from mpcvit.model.checkpoint import Checkpoint, flatten_parameters
from mpcvit.train.supervised import train
from tests.configs import TINY


@pytest.mark.long
def test_killed_run_ends_as_if_it_had_not_been(tmp_path):
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "mpcvit", "train", str(TINY), "--out", str(folder)]
    every_step = ["--set", "train.checkpoint_every_minutes=0"]
    process = subprocess.Popen([*command, *every_step], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (folder / STATE_FILE).exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no state was saved"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    subprocess.run([*command, "--resume"], check=True, capture_output=True)

    config = load_config(TINY)
    model = config.model
    dataset = load_dataset(
        config.data, image_size=model.image_size, channels=model.channels, classes=model.classes
    )
    expected = flatten_parameters(train(config, dataset, tmp_path / "whole").parameters)
    found = flatten_parameters(Checkpoint.load(folder / MODEL_FILE).parameters)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
