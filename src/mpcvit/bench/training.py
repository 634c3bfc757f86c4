"""What a training step takes: memory and seconds, each in a process of its own."""

import resource
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import jax
import numpy as np

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import Environment
from mpcvit.bench.networks import random_checkpoint
from mpcvit.bench.rows import Row
from mpcvit.cost.estimate import estimate
from mpcvit.data import Batch
from mpcvit.kinds.table import SOFTMAX
from mpcvit.progress import Progress, counted
from mpcvit.search.task import Search
from mpcvit.train.devices import Devices
from mpcvit.train.distilled import Distilled
from mpcvit.train.step import Task, initial_state, make_step
from mpcvit.train.supervised import Supervised

STAGES = ("train", "search", "retrain")


def bench_training(
    configs: Mapping[str, Config], *, stages: tuple[str, ...], progress: Progress
) -> list[Row]:
    """Return a row per configuration and stage: peak memory, and seconds of a step."""
    here, work = Environment.current(), [(name, own) for name in configs for own in stages]
    rows = []
    for name, stage in counted("stages", work, progress):
        train = configs[name].train
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
            found = child.submit(_take_steps, configs[name], stage).result()
        rows.append(
            {
                "model": name,
                "stage": stage,
                "batch_size": train.batch_size,
                "remat": train.remat,
                **found,
                "hardware": here.hardware,
                "commit": here.commit,
                "created": here.created,
            }
        )
    return rows


def _take_steps(config: Config, stage: str) -> Row:
    """Train random weights on random images; the first step compiles and is not timed."""
    devices, task = Devices(), _task(config, stage)
    devices.require_divisible(config.train.batch_size, "train.batch_size")
    images = config.train.batch_size // devices.count
    state = devices.copy(initial_state(task, config, steps_per_epoch=100))
    frozen, batch = devices.copy(task.frozen()), devices.from_local(_random_batch(config))
    step = make_step(task, config, 100, devices)
    state, _ = jax.block_until_ready(step(state, frozen, batch))
    started = time.perf_counter()
    jax.block_until_ready(step(state, frozen, batch))
    seconds = time.perf_counter() - started
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "piece_size": devices.piece_size(images, config.train.piece_size),
        "devices": devices.count,
        "peak_gb": round(1024 * peak_kib / 1e9, 2),
        "step_s": round(seconds, 2),
        "images_per_s": round(config.train.batch_size / seconds, 2),
    }


def _task(config: Config, stage: str) -> Task:
    model = config.model
    softmax = Architecture.uniform(SOFTMAX, depth=model.depth, heads=model.heads)
    classes = tuple(str(index) for index in range(model.classes))
    known: dict[str, Any] = {"config": config, "classes": classes, "data_fingerprint": ""}
    if stage == "search":
        return Search(latency=estimate(model), **known)
    if stage == "train":
        return Supervised(architecture=softmax, **known)
    teacher = replace(random_checkpoint(model, softmax), data=config.data)
    return Distilled(architecture=softmax, teacher=teacher, **known)


def _random_batch(config: Config) -> Batch:
    model, size, rng = config.model, config.train.batch_size, np.random.default_rng(0)
    shape = (size, model.image_size, model.image_size, model.channels)
    return Batch(
        images=rng.standard_normal(shape, np.float32),
        targets=np.full((size, model.classes), 1 / model.classes, np.float32),
        labels=np.zeros(size, np.int32),
        indices=np.arange(size, dtype=np.int32),
    )
