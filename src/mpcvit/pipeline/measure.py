"""A network classifies test images privately: what it cost, and whether it said the same."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.provenance import PROGRAM_FILE
from mpcvit.artifacts.record import RunRecord
from mpcvit.classifier import Classifier
from mpcvit.codec import load, save
from mpcvit.data import Split
from mpcvit.errors import UserError
from mpcvit.experiments.store import Outcome, reuse_or_make
from mpcvit.lowering.emulate import emulate
from mpcvit.lowering.program import Model, SecureProgram
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.progress import Progress
from mpcvit.secure.run import RunResult, run
from mpcvit.storage import read_json, write_text

COMPARING = "comparing with plaintext"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A private run's record, its predictions, and its row of the results."""

    record: RunRecord
    row: dict[str, Any]
    predictions: tuple[str, ...]

    @property
    def words(self) -> str:
        row = self.row
        seconds = row["measured_s"] or row["modelled_s"]
        kind = "measured" if row["measured_s"] else "modelled"
        shown = f", {seconds:.2f} s {kind}" if seconds else ""
        return f"{row['exchanges']:,} exchanges, {row['sent_mb']:.1f} MB{shown}"


def measure_once(
    folder: Path, form: str, made_from: Mapping[str, Any], make: Callable[[], Measurement]
) -> Outcome[Measurement]:
    """Measure a network, unless its folder holds a measurement that was made from the same."""
    path, record = folder / f"measured-{form}.json", folder / f"record-{form}.json"

    def write() -> None:
        measurement = make()
        save(record, measurement.record)
        document = {"row": measurement.row, "predictions": measurement.predictions}
        write_text(path, json.dumps(document, indent=1) + "\n")

    def read(path: Path) -> Measurement:
        document = read_json(path.read_text("utf-8"), str(path))
        if document.keys() != {"row", "predictions"} or "total_s" not in document["row"]:
            raise UserError(f"{path} is not a measurement of this version")
        return Measurement(
            record=load(RunRecord, record),
            row=document["row"],
            predictions=tuple(document["predictions"]),
        )

    return reuse_or_make(path, made_from, write, read)


def digest_of(model: Path) -> str:
    """Return the digest of a checkpoint, or of a program's description."""
    file = model / PROGRAM_FILE if model.is_dir() else model
    return hashlib.sha256(file.read_bytes()).hexdigest()


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
    result = run(model, pixels, profile, simulate=simulate, insecure=True, progress=progress)
    labels, top1 = np.asarray(test.labels[:images]), _accuracy(model, test, progress)
    progress(COMPARING, 0, 1)
    return judge(result, profile, checkpoint, list(pixels), labels=labels, top1=top1)


def judge(
    result: RunResult,
    profile: Profile,
    checkpoint: Checkpoint,
    pictures: list[Any],
    *,
    labels: np.ndarray,
    top1: float,
) -> Measurement:
    """Return how often a private run was right, and its cost.

    Exchanges are those of a batch, and the rest is by image. `checkpoint` gives the classes
    in plaintext, and `top1` is the accuracy on the whole test split.
    """
    classifier = Classifier(checkpoint)
    plain = classifier(classifier.preprocess(pictures)).argmax(axis=1)
    record, count = result.record, result.record.images
    here = record.environment
    private = np.array(  # a refused answer is no class
        [answer.chosen[0] if answer.trusted else -1 for answer in result.answers]
    )
    modelled = profile.protocol.counts_rounds
    row = {
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
        "measured_s": round(record.times.per_image_s, 3) if record.was_timed else "",
        "all_images_s": round(record.times.images_s, 3) if record.was_timed else "",
        "set_up_s": round(record.times.set_up_s, 3) if record.was_timed else "",
        "total_s": round(record.times.total_s, 3) if record.was_timed else "",
        "protocol": profile.protocol.name,
        "round_trip_ms": profile.network.round_trip_ms,
        "bandwidth_mb_per_s": profile.network.bandwidth_bytes_per_s / 1e6,
        "warning": profile.warning,
        "hardware": here.hardware,
        "commit": here.commit,
        "created": here.created,
    }
    predictions = tuple(", ".join(names) or "no answer" for names in result.likeliest)
    return Measurement(record=record, row=row, predictions=predictions)


def _accuracy(model: Model, test: Split, progress: Progress) -> float:
    """Return top-1 on the whole test split, of a program by its plaintext emulation."""
    if not isinstance(model, SecureProgram):
        return model.provenance.top1 or 0.0
    return emulate(model, test, progress=progress).evaluation.top1
