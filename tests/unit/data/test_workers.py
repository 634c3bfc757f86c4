import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mpcvit.artifacts.config import AugmentConfig, DataConfig
from mpcvit.data import Split, TrainBatches
from mpcvit.data.batches import Recipe
from mpcvit.data.workers import MappedFile, Task, WorkerPool
from mpcvit.errors import UserError

RGB = DataConfig(mean=(0.5,) * 3, std=(0.5,) * 3)
ENDING_S = 20.0  # far more than a worker needs to notice that it is alone

# without a guard for __main__, and with JAX: what a user's script may look like
PARENT = """
import sys, time
import jax, numpy as np
from mpcvit.artifacts.config import AugmentConfig, DataConfig
from mpcvit.data import Split, TrainBatches

split = Split(images=np.zeros((8, 5, 5, 1), np.uint8), labels=np.zeros(8, np.int32))
sizes = {"batch_size": 2, "classes": 2, "workers": 2}
made = TrainBatches(split, AugmentConfig(), DataConfig(), seed=0, **sizes)
batches = made.batches(0)
next(batches)
print(*made._pool.pids, flush=True)
time.sleep(60)
"""


def train(split: Split, augment: AugmentConfig, workers: int, classes: int = 5) -> TrainBatches:
    return TrainBatches(split, augment, RGB, batch_size=4, seed=3, classes=classes, workers=workers)


def recipe(split: Split) -> Recipe:
    return Recipe(
        split=split,
        augment=AugmentConfig(),
        mean=RGB.mean,
        std=RGB.std,
        batch_size=4,
        seed=3,
        classes=5,
        shard=(0, 1),
    )


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def all_end(pids: list[int]) -> bool:
    deadline = time.monotonic() + ENDING_S
    while time.monotonic() < deadline:
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("start_step", [0, 9])
def test_workers_change_no_bit(workers, start_step, small_split, everything):
    expected = list(train(small_split, everything, 0).batches(1, start_step))
    with train(small_split, everything, workers) as made:
        found = list(made.batches(1, start_step))
        assert len(found) == len(expected) == 15 - start_step
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one.images, other.images)
            np.testing.assert_array_equal(one.targets, other.targets)
            np.testing.assert_array_equal(one.labels, other.labels)


def test_epoch_given_up_leaves_no_trace(small_split, everything):
    expected = [batch.images for batch in train(small_split, everything, 0).batches(1)]
    with train(small_split, everything, 2) as made:
        old = made.batches(0)
        next(old)
        found = [batch.images for batch in made.batches(1)]
        np.testing.assert_array_equal(found, expected)
        with pytest.raises(RuntimeError, match="given up when newer ones were asked for"):
            next(old)


def test_arrays_in_memory_are_sent(everything):
    rng = np.random.default_rng(0)
    split = Split(
        images=rng.integers(0, 256, (8, 5, 7, 3), dtype=np.uint8), labels=np.arange(8) % 5
    )
    expected = next(train(split, everything, 0).batches(0))
    with train(split, everything, 1) as made:
        np.testing.assert_array_equal(next(made.batches(0)).images, expected.images)


def test_mapped_arrays_travel_by_path(small_split):
    described = MappedFile.describe(small_split.images)
    assert isinstance(described, MappedFile)
    np.testing.assert_array_equal(described.open(), small_split.images)
    slice_ = small_split.images[5:]
    assert MappedFile.describe(slice_) is slice_


def test_a_killed_worker_is_reported(small_split):
    pool = WorkerPool(recipe(small_split), 2)
    try:
        batches = pool.run([Task(0, step) for step in range(15)])
        next(batches)
        os.kill(pool.pids[1], signal.SIGKILL)
        with pytest.raises(
            UserError, match=r"a data worker .* ended unexpectedly with exit code -9"
        ):
            list(batches)
    finally:
        pool.close()
    assert all_end(list(pool.pids))


def test_a_failing_worker_says_why(small_split):
    with (
        train(small_split, AugmentConfig(), 1, classes=2) as made,
        pytest.raises(RuntimeError, match=r"a data worker failed:\n(.*\n)*IndexError"),
    ):
        next(made.batches(0))


def test_close_ends_the_workers(small_split):
    pool = WorkerPool(recipe(small_split), 2)
    batches = pool.run([Task(0, step) for step in range(15)])
    next(batches)
    pool.close()
    assert not any(is_running(pid) for pid in pool.pids)
    with pytest.raises(RuntimeError, match="were closed"):
        next(batches)


def test_forgotten_workers_end_too(small_split):
    pool = WorkerPool(recipe(small_split), 1)
    pids = list(pool.pids)
    del pool
    gc.collect()
    assert not any(is_running(pid) for pid in pids)


def test_interrupted_batches_can_start_again(small_split, everything, monkeypatch):
    expected = next(train(small_split, everything, 0).batches(0))
    with train(small_split, everything, 1) as made:
        batches = made.batches(0)
        with monkeypatch.context() as patch:
            patch.setattr("mpcvit.data.workers._read_into", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        np.testing.assert_array_equal(next(made.batches(0)).images, expected.images)


def interrupt(handle: int, _array: np.ndarray) -> None:
    """Ctrl-C, after a part of the answer was read."""
    os.read(handle, 5)
    raise KeyboardInterrupt


def test_closed_batches_can_start_again(small_split):
    made = train(small_split, AugmentConfig(), 1)
    with made:
        first = next(made.batches(0))
    with made:
        np.testing.assert_array_equal(next(made.batches(0)).images, first.images)


@contextmanager
def running_parent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            yield parent, [int(pid) for pid in parent.stdout.readline().split()]
        finally:
            parent.kill()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_workers_stay_light_and_end_with_their_parent(sent, tmp_path):
    with running_parent(tmp_path) as (parent, pids):
        assert len(pids) == 2
        for pid in pids:
            libraries = Path(f"/proc/{pid}/maps").read_text()
            assert "numpy" in libraries
            assert "jaxlib" not in libraries
        assert "jaxlib" in Path(f"/proc/{parent.pid}/maps").read_text()
        os.killpg(parent.pid, sent)  # as a terminal does: to all that belong to it
        _, errors = parent.communicate(timeout=ENDING_S)
        assert all_end(pids)
    assert errors.count("Traceback") == (sent == signal.SIGINT)  # the parent's own, no worker's
