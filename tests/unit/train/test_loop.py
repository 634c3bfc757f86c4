"""The loop: resuming, sharding, stopping and diverging."""

import json
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.provenance import MODEL_FILE, STATE_FILE
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.checkpoint import flatten_parameters
from mpcvit.train import devices as devices_module
from mpcvit.train.log import read_log
from mpcvit.train.loop import DivergedError, StoppedError
from mpcvit.train.supervised import train
from tests.configs import TINY
from tests.training import StopAt, assert_same_parameters, digits, log_without_speed


def tiny(*overrides):
    # one block has every operation of many, and compiles in half the time
    return load_config(TINY, ["train.epochs=2", "model.depth=1", *overrides])


@pytest.fixture(scope="module")
def dataset():
    return digits(tiny())


@pytest.fixture(autouse=True)
def tell_every_step(monkeypatch):
    monkeypatch.setattr("mpcvit.train.loop.REPORT_EVERY_S", 0.0)


@pytest.fixture(scope="module")
def uninterrupted(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return train(tiny("data.path=/home/someone/images"), dataset, folder), folder


class KillAt(StopAt):
    """Ends the run without a last save, as SIGKILL would."""

    def on_step(self, event):
        if event.step >= self.step:
            raise KeyboardInterrupt


def test_a_run_that_is_stopped_often_ends_bit_equal(uninterrupted, dataset, tmp_path):
    """Each stop is of another kind; 11 steps make an epoch."""
    with pytest.raises(StoppedError, match="stopped after step 4 of 22"):
        train(tiny(), dataset, tmp_path, observers=[StopAt(4)])
    early = (tmp_path / STATE_FILE).read_bytes()
    with pytest.raises(StoppedError, match="stopped after step 11 of 22"):
        train(tiny(), dataset, tmp_path, resume=True, observers=[StopAt(11, signal.SIGTERM)])
    # a kill between two saves leaves a state that is older than the log
    assert len(read_log(tmp_path)) == 1
    (tmp_path / STATE_FILE).write_bytes(early)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"epoch": 2, "st')  # a line that was being written
    always = tiny("train.checkpoint_every_minutes=0")
    with pytest.raises(KeyboardInterrupt):
        train(always, dataset, tmp_path, resume=True, observers=[KillAt(15)])
    # the state of step 14 was saved because of its age
    with pytest.raises(StoppedError, match="stopped after step 17 of 22"):
        train(tiny(), dataset, tmp_path, resume=True, observers=[StopAt(17)])
    resumed = train(tiny(), dataset, tmp_path, resume=True)
    expected, folder = uninterrupted
    assert_same_parameters(resumed, expected)
    assert log_without_speed(tmp_path) == log_without_speed(folder)


def test_progress_reaches_the_end_of_each_epoch(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("mpcvit.train.loop.REPORT_EVERY_S", 60.0)
    seen = []
    observer = SimpleNamespace(
        on_step=lambda event: seen.append((event.epoch + 1, event.step)),
        on_epoch=lambda event: seen.append((event.row["epoch"], "end")),
    )
    train(tiny(), dataset, tmp_path, observers=[observer])
    before = [seen[seen.index((epoch, "end")) - 1] for epoch in (1, 2)]
    assert before == [(1, 11), (2, 22)]


def test_seeds_differ(uninterrupted, dataset, tmp_path):
    other = train(tiny("seed=1"), dataset, tmp_path)
    kernel = other.parameters["head"]["kernel"]
    assert not np.allclose(kernel, uninterrupted[0].parameters["head"]["kernel"])


def test_devices_share_a_batch(dataset, tmp_path, monkeypatch):
    """Two devices compute what one does, up to the order of sums."""
    assert jax.device_count() == 2
    # each device drops out by its own random numbers
    config = tiny("model.attention_dropout=0.0", "model.stochastic_depth=0.0")
    together = train(config, dataset, tmp_path / "two")
    monkeypatch.setattr(devices_module.jax, "devices", lambda: jax.local_devices()[:1])
    alone = train(config, dataset, tmp_path / "one")
    assert devices_module.Devices().count == 1
    one, other = (flatten_parameters(run.parameters) for run in (alone, together))
    for name in one:
        # Adam divides by the gradient's size, so rounding moves a parameter by up to a
        # small part of the learning rate (3e-3) at each of the 22 steps.
        assert np.abs(one[name] - other[name]).max() < 1e-3


def test_pieces_add_up_to_the_batch(dataset, tmp_path):
    """However a device cuts its part of a batch, the update is the same."""
    settings = ("model.attention_dropout=0.0", "model.stochastic_depth=0.0")
    runs = [
        train(tiny(*settings, f"train.piece_size={size}"), dataset, tmp_path / str(size))
        for size in (64, 16)
    ]
    one, other = (flatten_parameters(run.parameters) for run in runs)
    for name in one:
        assert np.abs(one[name] - other[name]).max() < 1e-3  # as above
    assert read_log(tmp_path / "64")[0]["train_loss"] == pytest.approx(
        read_log(tmp_path / "16")[0]["train_loss"], rel=1e-5
    )


def test_a_state_of_another_run_or_a_damaged_one_is_refused(uninterrupted, dataset, tmp_path):
    state = (uninterrupted[1] / STATE_FILE).read_bytes()
    (tmp_path / STATE_FILE).write_bytes(state)
    with pytest.raises(UserError, match=r"'train.learning_rate' was 0.003 and is 0.1"):
        train(tiny("train.learning_rate=0.1"), dataset, tmp_path, resume=True)
    with pytest.raises(UserError, match=r"'model.width' was 16 and is 32"):
        train(tiny("model.width=32"), dataset, tmp_path, resume=True)
    other = Architecture.uniform(table.SCALING, depth=1, heads=2)
    with pytest.raises(UserError, match="'architecture' was"):
        train(tiny(), dataset, tmp_path, architecture=other, resume=True)
    with pytest.raises(UserError, match="'data_fingerprint' was"):
        train(tiny(), replace(dataset, fingerprint="other"), tmp_path, resume=True)
    (tmp_path / STATE_FILE).write_bytes(state[:-3] + bytes([state[-3] ^ 4]) + state[-2:])
    with pytest.raises(UserError, match="damaged"):
        train(tiny(), dataset, tmp_path, resume=True)


def test_divergence_is_said(dataset, tmp_path):
    config = tiny("train.learning_rate=1e30", "train.warmup_epochs=0", "model.attention=square")
    with pytest.raises(DivergedError, match="not finite at step"):
        train(config, dataset, tmp_path)


def test_batch_must_divide_over_devices(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(devices_module.Devices, "count", 3)
    with pytest.raises(UserError, match=r"'train.batch_size' \(128\) must be divisible"):
        train(tiny(), dataset, tmp_path)


def test_run_folder(uninterrupted):
    checkpoint, folder = uninterrupted
    names = {entry.name for entry in folder.iterdir()}
    assert names == {MODEL_FILE, STATE_FILE, "log.jsonl", "tensorboard"}
    row = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    assert row["test_top1"] == checkpoint.provenance.metrics["test_top1"]
    assert checkpoint.provenance.config["seed"] == 0
    assert len(checkpoint.provenance.data_fingerprint) == 64


def test_the_path_of_the_data_is_in_no_file(uninterrupted):
    for file in uninterrupted[1].rglob("*"):
        assert file.is_dir() or b"someone" not in file.read_bytes(), file


def test_bfloat16_trains_float32_parameters(uninterrupted, dataset, tmp_path):
    half = train(tiny("train.precision=bfloat16"), dataset, tmp_path)
    kernel = half.parameters["head"]["kernel"]
    assert kernel.dtype == np.float32
    assert np.isfinite(kernel).all()
    full = uninterrupted[0].provenance.metrics["test_loss"]
    # 22 steps in 8 bits of mantissa: near, but not the same
    assert half.provenance.metrics["test_loss"] == pytest.approx(full, rel=0.05)
    assert half.provenance.metrics["test_loss"] != full


def test_input_wait_is_a_share(uninterrupted):
    for row in read_log(uninterrupted[1]):
        assert 0 < row["input_wait"] < 1


def test_full_disk_is_noticed_before_training(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("mpcvit.storage.shutil.disk_usage", lambda _: type("U", (), {"free": 9})())
    with pytest.raises(UserError, match=r"free, but .* are needed"):
        train(tiny(), dataset, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_fresh_run_forgets_the_earlier_one(uninterrupted, dataset, tmp_path):
    shutil.copytree(uninterrupted[1], tmp_path, dirs_exist_ok=True)
    assert (tmp_path / MODEL_FILE).exists()
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), dataset, tmp_path, observers=[KillAt(1)])
    assert not (tmp_path / MODEL_FILE).exists()
    assert not (tmp_path / STATE_FILE).exists()
    assert read_log(tmp_path) == []


@pytest.mark.long  # the network of `test_statistics.py` learns as much each time
def test_learns(dataset, tmp_path):
    """Seconds of training must beat chance (10 %) by far."""
    config = tiny(
        *("train.epochs=12", "augment.mixup=0.0", "augment.cutmix=0.0", "train.batch_size=32"),
        *("train.eval_every_epochs=12", "model.width=32"),
    )
    assert train(config, dataset, tmp_path).provenance.metrics["test_top1"] > 0.6
