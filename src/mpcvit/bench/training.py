"""How fast training, its input and evaluation are on this machine.

What is compared is measured in turns within one run, because machines are
shared: the ratio counts, and each figure is the median of its rounds.
"""

import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import Environment
from mpcvit.codec import encode
from mpcvit.cost.estimate import estimate
from mpcvit.data import Batch, Split, TrainBatches
from mpcvit.errors import UserError
from mpcvit.search.task import Search
from mpcvit.train.devices import Devices
from mpcvit.train.evaluate import Evaluator
from mpcvit.train.step import Task, initial_state, make_step
from mpcvit.train.supervised import Supervised

Progress = Callable[[str, int, int], None]
STEPS = 2  # per round


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Images per second, as median and quartiles over rounds."""

    name: str
    images_per_s: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, images: int, seconds: list[float]) -> "Rate":
        low, middle, high = statistics.quantiles([images / s for s in seconds], n=4)
        return cls(name=name, images_per_s=middle, low=low, high=high)


def bench_training(config: Config, *, rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """Measure the step beside PyTorch's, the input pipeline, and evaluation."""
    # First, so that the process's peak is evaluation's own.
    evaluation, peak_bytes = _evaluation(config, progress)
    steps = _steps(config, rounds, progress)
    rates = [*steps, _pipeline(config, rounds, progress), evaluation]
    ours = steps[0].images_per_s
    here = Environment.here()
    return [
        {
            "what": rate.name,
            "model": config.name,
            "batch_size": config.train.batch_size,
            "images_per_s": round(rate.images_per_s, 1),
            "low_quartile": round(rate.low, 1),
            "high_quartile": round(rate.high, 1),
            "times_jax_step": round(rate.images_per_s / ours, 3),
            "peak_memory_mb": round(peak_bytes / 1e6) if rate is evaluation else "",
            "devices": jax.device_count(),
            "hardware": here.hardware,
            "commit": here.commit,
            "created": here.created,
        }
        for rate in rates
    ]


def _steps(config: Config, rounds: int, progress: Progress) -> list[Rate]:
    ours = {
        "JAX training step": _jax_step(config, _task(config)),
        "JAX search step": _jax_step(config, _search(config)),
    }
    seconds: dict[str, list[float]] = {}
    with _TorchStep(config) as torch_step:
        contenders = {**ours, **torch_step.measures}
        for turn in range(rounds + 1):
            for name, measure in contenders.items():
                taken = measure()
                if turn > 0:  # the first warms up
                    seconds.setdefault(name, []).append(taken)
            progress("training steps", turn, rounds)
    images = STEPS * config.train.batch_size
    return [Rate.of(name, images, taken) for name, taken in seconds.items()]


def _jax_step(config: Config, task: Task) -> Callable[[], float]:
    devices = Devices()
    devices.require_divisible(config.train.batch_size, "train.batch_size")
    state = devices.copy(initial_state(task, config, steps_per_epoch=100))
    step = make_step(task, config, 100, devices)
    batch = devices.from_local(_random_batch(config))

    def measure() -> float:
        nonlocal state
        started = time.perf_counter()
        for _ in range(STEPS):
            state, _ = step(state, task.frozen(), batch)
        jax.block_until_ready(state)
        return time.perf_counter() - started

    return measure


class _TorchStep:
    """The same step by PyTorch in a process of its own; no measure without PyTorch."""

    def __init__(self, config: Config) -> None:
        self.measures: dict[str, Callable[[], float]] = {}
        self._process: subprocess.Popen[str] | None = None
        if importlib.util.find_spec("torch") is None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mpcvit.bench.torch_vit"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._send(
            json.dumps(
                {
                    "model": encode(config.model),
                    "batch_size": config.train.batch_size,
                    "threads": len(os.sched_getaffinity(0)),
                }
            )
        )
        self.measures["PyTorch training step"] = self._measure

    def __enter__(self) -> "_TorchStep":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _measure(self) -> float:
        self._send(str(STEPS))
        assert self._process is not None
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise UserError("the PyTorch process ended early; is its installation complete?")
        return float(answer)


def _pipeline(config: Config, rounds: int, progress: Progress) -> Rate:
    """Augmented batches, as many as training would take, of images of random pixels."""
    size, model = 4 * config.train.batch_size, config.model
    rng = np.random.default_rng(0)
    shape = (size, model.image_size, model.image_size, model.channels)
    split = Split(
        images=rng.integers(0, 256, shape, np.uint8),
        labels=rng.integers(0, model.classes, size).astype(np.int32),
    )
    seconds = []
    with TrainBatches(
        split,
        config.augment,
        config.data,
        batch_size=config.train.batch_size,
        seed=config.seed,
        classes=model.classes,
    ) as batches:
        for turn in range(rounds + 1):
            started = time.perf_counter()
            for _ in batches.batches(turn):
                pass
            if turn > 0:
                seconds.append(time.perf_counter() - started)
            progress("input pipeline", turn, rounds)
    return Rate.of("input pipeline", size, seconds)


def _evaluation(config: Config, progress: Progress, images: int = 10_000) -> tuple[Rate, int]:
    model = config.model
    rng = np.random.default_rng(0)
    shape = (images, model.image_size, model.image_size, model.channels)
    split = Split(images=rng.integers(0, 256, shape, np.uint8), labels=np.zeros(images, np.int32))
    task = _task(config)
    devices = Devices()
    parameters = devices.copy(task.init(0))
    evaluate = Evaluator(task.logits, devices, config.train.eval_batch_size)
    first = replace(split, images=split.images[:256], labels=split.labels[:256])
    evaluate(parameters, first, config.data)  # compiles
    seconds = []
    for turn in range(2):
        seconds.append(evaluate(parameters, split, config.data).seconds)
        progress("evaluation", turn + 1, 2)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Rate.of("evaluation", images, seconds), 1024 * peak_kib


def _task(config: Config) -> Supervised:
    model = config.model
    return Supervised(
        config=config,
        architecture=Architecture.uniform(model.attention, depth=model.depth, heads=model.heads),
        classes=tuple(str(index) for index in range(model.classes)),
        data_fingerprint="",
    )


def _search(config: Config) -> Search:
    return Search(config=config, latency=estimate(config.model), data_fingerprint="")


def _random_batch(config: Config) -> Batch:
    model, size = config.model, config.train.batch_size
    rng = np.random.default_rng(0)
    shape = (size, model.image_size, model.image_size, model.channels)
    return Batch(
        images=rng.standard_normal(shape, np.float32),
        targets=rng.dirichlet(np.ones(model.classes), size).astype(np.float32),
        labels=np.zeros(size, np.int32),
        places=np.arange(size, dtype=np.int32),
    )
