"""A network classifies test images privately: what it cost, and whether it said the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import RunRecord
from mpcvit.classifier import Classifier
from mpcvit.data import Split
from mpcvit.lowering.emulate import emulate
from mpcvit.lowering.program import Model, SecureProgram
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.secure.run import RunResult, run

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A private run's record, and its row of the results."""

    record: RunRecord
    row: dict[str, Any]


def measure(
    model: Model,
    checkpoint: Checkpoint,
    test: Split,
    profile: Profile,
    *,
    images: int,
    simulate: bool,
    progress: Progress,
) -> Measurement:
    """Run the first test images one by one; `checkpoint` is what the model came from."""
    pixels = np.asarray(test.images[:images])
    result = run(model, pixels, profile, simulate=simulate, progress=progress)
    classifier = Classifier(checkpoint)
    row = make_row(
        result,
        profile,
        plain=classifier(classifier.preprocess(list(pixels))).argmax(axis=1),
        labels=np.asarray(test.labels[:images]),
        top1=_accuracy(model, test, progress),
    )
    return Measurement(record=result.record, row=row)


def make_row(
    result: RunResult, profile: Profile, *, plain: np.ndarray, labels: np.ndarray, top1: float
) -> dict[str, Any]:
    """What a private run was right about, and its cost: exchanges of a batch, the rest by image.

    `plain` are the classes that the network gives in plaintext, and `top1` is its
    accuracy on the whole test split.
    """
    record, count = result.record, result.record.images
    private, here = np.argmax(result.answers.chosen, axis=1), record.environment
    private = np.where(result.answers.trusted, private, -1)  # a refused answer is no class
    modelled = profile.protocol.counts_rounds
    return {
        "form": record.form,
        "reveal": record.reveal.value,
        "top1": round(100 * top1, 2),
        "images": count,
        "batch": record.batches[0].images,
        "agree": int((private == plain).sum()),
        "private_right": int((private == labels).sum()),
        "exchanges": round(record.exchanges / len(record.batches)),
        "sent_mb": round(record.sent_bytes / 1e6 / count, 4),
        "compute_s": round(record.compute_s / count, 4),
        "modelled_s": round(record.modelled_s(profile.network) / count, 4) if modelled else "",
        "measured_s": round(record.measured_s / count, 3) if record.was_timed else "",
        "protocol": profile.protocol.name,
        "round_trip_ms": profile.network.round_trip_ms,
        "bandwidth_mb_per_s": profile.network.bandwidth_bytes_per_s / 1e6,
        "warning": profile.warning,
        "hardware": here.hardware,
        "commit": here.commit,
        "created": here.created,
    }


def _accuracy(model: Model, test: Split, progress: Progress) -> float:
    """Top-1 on the whole test split: a checkpoint's own, or of a program's plaintext emulation."""
    if not isinstance(model, SecureProgram):
        return model.provenance.metrics["test_top1"]
    emulation = emulate(
        model,
        test,
        batch_size=256,
        progress=lambda done, total: progress("evaluating", done, total),
    )
    return emulation.evaluation.top1
