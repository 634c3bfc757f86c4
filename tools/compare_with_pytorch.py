"""Measure training, its input and evaluation on this machine, beside PyTorch if it is installed.

    python tools/compare_with_pytorch.py cifar10 --out results/training-speed.csv

Contenders are measured in turns within one run, because machines are shared: compare ratios.
Each value is the median of its rounds. PyTorch runs in a process of its own, which is this
script with the argument `pytorch`: it reads a model's shape as JSON from its first line, then
a number of steps per line, and answers each with the seconds that they took.
"""

import importlib
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
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config, ModelConfig, load_config
from mpcvit.artifacts.provenance import Environment, write_rows
from mpcvit.codec import decode, encode
from mpcvit.cores import split_cpu
from mpcvit.cost.estimate import estimate
from mpcvit.data import Batch, Split, TrainBatches
from mpcvit.errors import UserError
from mpcvit.report.live import counting
from mpcvit.search.task import Search
from mpcvit.train.devices import Devices
from mpcvit.train.evaluate import Evaluator
from mpcvit.train.step import Task, initial_state, make_step
from mpcvit.train.supervised import Supervised

Progress = Callable[[str, int, int], None]
STEPS = 2  # per round
_PYTORCH = "pytorch"  # the argument of the process that runs PyTorch


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A median of images per second, with the quartiles of its rounds."""

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
    here = Environment.current()
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
    """A training step by PyTorch in a process of its own; there is none without PyTorch."""

    def __init__(self, config: Config) -> None:
        self.measures: dict[str, Callable[[], float]] = {}
        self._process: subprocess.Popen[str] | None = None
        if importlib.util.find_spec("torch") is None:
            return
        self._process = subprocess.Popen(
            [sys.executable, __file__, _PYTORCH],
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
    """Time augmented batches of images of random pixels."""
    size, model = 4 * config.train.batch_size, config.model
    rng = np.random.default_rng(0)
    shape = (size, model.image_size, model.image_size, model.channels)
    split = Split(
        images=rng.integers(0, 256, shape, np.uint8),
        labels=rng.integers(0, model.classes, size).astype(np.int32),
    )
    seconds = []
    batches = TrainBatches(
        split,
        config.augment,
        config.data,
        batch_size=config.train.batch_size,
        seed=config.seed,
        classes=model.classes,
    )
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
        indices=np.arange(size, dtype=np.int32),
    )


def serve_pytorch() -> None:
    """Measure the paper's network in PyTorch, as standard input asks."""
    # PyTorch is no dependency: it is looked up by name, and only in this process.
    torch: Any = importlib.import_module("torch")
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, config: ModelConfig, depth_rate: float) -> None:
            super().__init__()
            self.config, self.depth_rate = config, depth_rate
            width, hidden = config.width, config.hidden
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=config.qkv_bias)
            self.proj = nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

        def attend(self, x: Any) -> Any:
            batch, tokens, width = x.shape
            qkv = self.qkv(x).reshape(batch, tokens, 3, self.config.heads, self.config.head_dim)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1) * self.config.head_dim**-0.5).softmax(dim=-1)
            weights = nn.functional.dropout(weights, self.config.attention_dropout)
            return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, width))

        def drop(self, x: Any) -> Any:
            if self.depth_rate == 0:
                return x
            kept = torch.rand(len(x), 1, 1) >= self.depth_rate
            return x * kept / (1 - self.depth_rate)

        def forward(self, x: Any) -> Any:
            x = self.norm2(x + self.drop(self.attend(self.norm1(x))))
            return x + self.drop(self.down(nn.functional.gelu(self.up(x))))

    class Vit(nn.Module):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__()
            patch, width = config.patch_size, config.width
            self.patch = nn.Conv2d(config.channels, width, patch, patch)
            self.token = nn.Parameter(torch.zeros(1, 1, width))
            self.position = nn.Parameter(torch.randn(1, config.tokens, width) * 0.02)
            rates = torch.linspace(0, config.stochastic_depth, config.depth).tolist()
            self.blocks = nn.Sequential(*(Block(config, rate) for rate in rates))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, config.classes)

        def forward(self, images: Any) -> Any:
            x = self.patch(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
            return self.head(self.norm(self.blocks(x))[:, 0])

    request = json.loads(sys.stdin.readline())
    config = decode(ModelConfig, request["model"], "model")
    batch_size = request["batch_size"]
    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    model = Vit(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.06)
    images = torch.randn(batch_size, config.channels, config.image_size, config.image_size)
    targets = torch.softmax(torch.randn(batch_size, config.classes), dim=-1)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
        print(time.perf_counter() - started, flush=True)


def main(
    config_file: Annotated[Path, typer.Argument(help="Configuration (TOML).")],
    rounds: Annotated[int, typer.Option(min=2, help="Rounds per measurement.")] = 10,
    out: Annotated[Path | None, typer.Option(help="CSV file for the rows.")] = None,
) -> None:
    """Print images per second of training, search, input pipeline and evaluation."""
    config = load_config(config_file)
    split_cpu(config.train.batch_size)
    with counting() as progress:
        rows = bench_training(config, rounds=rounds, progress=progress)
    if out is not None:
        write_rows(out, rows)
    for row in rows:
        print(
            f"{row['what']:<22} {row['images_per_s']:>9,.1f} images/s"
            f"  ({row['low_quartile']:,.1f} to {row['high_quartile']:,.1f})"
            f"  {row['times_jax_step']:.2f} x"
        )


if __name__ == "__main__":
    if sys.argv[1:] == [_PYTORCH]:
        serve_pytorch()
    else:
        typer.run(main)
