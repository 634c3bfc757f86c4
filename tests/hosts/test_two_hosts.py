"""Two processes that meet through jax.distributed, as two hosts would."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.provenance import MODEL_FILE
from mpcvit.data import load_dataset
from mpcvit.model.checkpoint import Checkpoint, flatten_parameters
from mpcvit.train.supervised import train
from tests.configs import TINY


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.mark.long
def test_two_hosts_train_what_two_devices_do(tmp_path):
    command = [sys.executable, "-m", "mpcvit", "train", str(TINY), "--out", str(tmp_path / "hosts")]
    command += ["--json", "--fresh", "--set", f"distributed.coordinator=127.0.0.1:{free_port()}"]
    command += ["--set", "distributed.processes=2"]
    environment = {
        **os.environ,
        # one device per host, two in all
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("count=2", "count=1"),
    }
    hosts = [
        subprocess.Popen(
            [*command, "--set", f"distributed.process={process}"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    outputs = [host.communicate(timeout=300) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    one, other = (json.loads(output) for output, _ in outputs)
    assert one == other

    config = load_config(TINY)
    model = config.model
    dataset = load_dataset(
        config.data, image_size=model.image_size, channels=model.channels, classes=model.classes
    )
    expected = flatten_parameters(train(config, dataset, tmp_path / "devices").parameters)
    found = flatten_parameters(Checkpoint.load(tmp_path / "hosts" / MODEL_FILE).parameters)
    for name, tensor in expected.items():
        # the hosts add up gradients in another order; see test_devices_share_a_batch
        assert np.abs(found[name] - tensor).max() < 1e-3
