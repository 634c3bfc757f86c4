"""The training loop: jitted steps over sharded batches, saved as it goes.

The loop does not know what it trains. A `Task` gives parameters, a loss and
what to save; plain training, search and retraining are tasks.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import STATE_FILE, clear_run
from mpcvit.data import Batch, Dataset, TrainBatches
from mpcvit.errors import UserError
from mpcvit.storage import holding, require_room
from mpcvit.train.devices import Devices
from mpcvit.train.evaluate import Evaluator
from mpcvit.train.log import RunLog
from mpcvit.train.state import State, identify, load_state, save_state
from mpcvit.train.statistics import FixedStatistics, variance_ratio
from mpcvit.train.step import Task, initial_state, learning_rate, make_step

REPORT_EVERY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class StepEvent:
    """A step of a run, as it stands; means are over the epoch so far."""

    epoch: int
    epochs: int
    step: int
    steps: int
    means: dict[str, float]
    images_per_s: float


@dataclass(frozen=True, kw_only=True)
class EpochEvent:
    """One finished epoch, as it was logged."""

    folder: Path
    row: dict[str, Any]


class Observer(Protocol):
    """An observer that displays the progress of a training run."""

    def on_step(self, event: StepEvent) -> None: ...

    def on_epoch(self, event: EpochEvent) -> None: ...


class StoppedError(Exception):
    """The user stopped a run; it was saved and can be resumed."""


class DivergedError(UserError):
    """The loss is no longer a number."""


def fit(
    task: Task,
    config: Config,
    dataset: Dataset,
    folder: Path,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> State:
    """Train a task to the end of its epochs, or of a resumed run's."""
    devices = Devices()
    devices.require_divisible(config.train.batch_size, "train.batch_size")
    batches = TrainBatches(
        dataset.train,
        config.augment,
        config.data,
        batch_size=config.train.batch_size,
        seed=config.seed,
        classes=config.model.classes,
        shard=(config.distributed.process, config.distributed.processes),
    )
    # one process writes for all hosts
    with holding(folder) if devices.is_writer else nullcontext():
        run = _Run(task, config, dataset, folder, devices, batches, observers)
        run.prepare(resume=resume)
        with _stop_requests() as stop_requested:
            run.go(stop_requested)
        devices.wait_for_writer()
        return run.state


class _Run:
    """One call of `fit`: its compiled step, its state and its files."""

    def __init__(
        self,
        task: Task,
        config: Config,
        dataset: Dataset,
        folder: Path,
        devices: Devices,
        batches: TrainBatches,
        observers: Sequence[Observer],
    ) -> None:
        self.task, self.config, self.dataset, self.folder = task, config, dataset, folder
        self.devices, self.batches, self.observers = devices, batches, observers
        self.identity = identify(config, task.identity())
        self.steps_per_epoch = batches.steps_per_epoch
        self.total_steps = config.train.epochs * self.steps_per_epoch
        self.schedule = learning_rate(config.train, self.steps_per_epoch)
        self.train_step = make_step(task, config, self.steps_per_epoch, devices)
        self.evaluate = Evaluator(task.logits, devices, config.train.eval_batch_size)
        self.fix_statistics = FixedStatistics(task.statistics, devices)
        self.saved_at = time.monotonic()
        self.rate = _Rate(config.train.batch_size)

    def prepare(self, *, resume: bool) -> None:
        """Make or read the state, and see that its files will fit on the disk."""
        initial = initial_state(self.task, self.config, self.steps_per_epoch)
        size_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(initial))
        # two states at once while one replaces the other, and the artifact
        require_room(self.folder, 3 * size_bytes)
        if resume:
            initial = load_state(self.folder / STATE_FILE, initial, self.identity)
        elif self.devices.is_writer:
            clear_run(self.folder)
        self.state = self.devices.copy(initial)
        self.frozen = self.devices.copy(self.task.frozen())
        self.step = int(self.state.step)

    def go(self, stop_requested: Callable[[], bool]) -> None:
        if self.devices.is_writer:
            self.log = RunLog(self.folder, step=self.step)
        try:
            while self.step < self.total_steps:
                self._epoch(*divmod(self.step, self.steps_per_epoch), stop_requested)
        finally:
            if self.devices.is_writer:
                self.log.close()

    def _epoch(self, epoch: int, start: int, stop_requested: Callable[[], bool]) -> None:
        previous_loss = None
        self.input_wait = _Wait()
        for batch in self.input_wait.over(self.batches.batches(epoch, start)):
            batch = self.devices.from_local(batch)
            self.state, loss = self.train_step(self.state, self.frozen, batch)
            self.step += 1
            if previous_loss is not None:  # lets one step queue behind the one that runs
                previous_loss.block_until_ready()
            previous_loss = loss
            is_last = self.step % self.steps_per_epoch == 0
            if self.rate.tick() or is_last:  # a bar does not stop short of an epoch's end
                self._report(epoch)
            if not is_last:  # an epoch's last step is saved with its log row
                self._maybe_save(stop_requested)
        self._end_epoch(epoch)
        self._maybe_save(stop_requested)

    def _report(self, epoch: int) -> None:
        event = StepEvent(
            epoch=epoch,
            epochs=self.config.train.epochs,
            step=self.step,
            steps=self.total_steps,
            means=self._means(),
            images_per_s=self.rate.images_per_s,
        )
        for observer in self.observers:
            observer.on_step(event)

    def _maybe_save(self, stop_requested: Callable[[], bool]) -> None:
        stop, finished = stop_requested(), self.step == self.total_steps
        age_s = time.monotonic() - self.saved_at
        if stop or finished or age_s > 60 * self.config.train.checkpoint_every_minutes:
            self._save()
        if stop and not finished:
            raise StoppedError(f"stopped after step {self.step} of {self.total_steps}")

    def _end_epoch(self, epoch: int) -> None:
        done = epoch + 1
        row = {
            "epoch": done,
            "step": self.step,
            **{f"train_{name}": value for name, value in self._means().items()},
            "learning_rate": float(self.schedule(self.step - 1)),
            "images_per_s": round(self.rate.images_per_s, 1),
            "input_wait": round(self.input_wait.share, 4),
        }
        if done % self.config.train.eval_every_epochs == 0 or self.step == self.total_steps:
            running, data = self.state.parameters, self.config.data
            parameters = self.fix_statistics(running, self.dataset.train, data)
            evaluation = self.evaluate(parameters, self.dataset.judging, data)
            if self.dataset.validation is not None:
                evaluation = replace(evaluation, split="validation")
            row |= evaluation.as_metrics()
            if parameters is not running:
                row["variance_ratio"] = round(variance_ratio(running, parameters), 3)
            if self.devices.is_writer:
                parameters = jax.device_get(parameters)
                self.task.save(self.folder, parameters, evaluation)
                row |= self.task.epoch_values(parameters)
            self.rate.pause()
        sums = jax.tree.map(jnp.zeros_like, self.state.sums)
        self.state = self.state._replace(sums=self.devices.copy(sums))
        if self.devices.is_writer:
            self.log.write(row)
            for observer in self.observers:
                observer.on_epoch(EpochEvent(folder=self.folder, row=row))

    def _means(self) -> dict[str, float]:
        sums = {name: float(value) for name, value in self.state.sums.items()}
        images = sums.pop("images")
        means = {name: value / images for name, value in sums.items()}
        if not math.isfinite(means["loss"]):
            raise DivergedError(
                f"the loss is not finite at step {self.step}: the training diverged; "
                "lower train.learning_rate or set train.clip_norm"
            )
        return means

    def _save(self) -> None:
        if self.devices.is_writer:
            save_state(self.folder / STATE_FILE, jax.device_get(self.state), self.identity)
        self.saved_at = time.monotonic()


class _Wait:
    """A clock for the share of an epoch's time that is spent waiting for its input."""

    def __init__(self) -> None:
        self._started, self._waited_s = time.perf_counter(), 0.0

    @property
    def share(self) -> float:
        return self._waited_s / (time.perf_counter() - self._started)

    def over(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self._waited_s += time.perf_counter() - asked
            if batch is None:
                return
            yield batch


class _Rate:
    """A meter of images per second since the last pause; due about twice a second."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self.images_per_s = 0.0
        self.pause()

    def pause(self) -> None:
        """Forget time spent on something else, such as an evaluation."""
        self._steps, self._started = 0, None
        self._reported = 0.0

    def tick(self) -> bool:
        now = time.perf_counter()
        if self._started is None:  # the first step compiles
            self._started = now
            return False
        self._steps += 1
        self.images_per_s = self._steps * self._batch_size / (now - self._started)
        if now - self._reported < REPORT_EVERY_S:
            return False
        self._reported = now
        return True


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second Ctrl-C interrupts at once."""
    requested = False

    def request(number: int, frame: Any) -> None:
        nonlocal requested
        if requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested = True

    try:
        before = {
            number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # not the main thread: signals belong to someone else
        yield lambda: False
        return
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
