"""A showcase's networks classify its images privately, one image after the other."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit import __version__
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.provenance import write_rows
from mpcvit.artifacts.record import RunRecord
from mpcvit.codec import encode
from mpcvit.demo.showcase import Column, Sample, Showcase, model_in
from mpcvit.errors import UserError
from mpcvit.experiments.store import Status
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.pipeline.measure import (
    COMPARING,
    Measurement,
    digest_of,
    judge,
    measure_once,
)
from mpcvit.report.live import WholeProgress
from mpcvit.report.story import SECONDS
from mpcvit.secure.run import run, with_engine_of
from mpcvit.storage import require_room

RESULTS_FILE = "demo.csv"
PREDICTIONS_FILE = "predictions.csv"
_REPORT_BYTES = 5_000_000  # for records and the page


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A column: its predictions for the first images, and their cost."""

    title: str
    predictions: tuple[str, ...]
    record: RunRecord
    row: dict[str, Any]
    reused: bool

    @property
    def image_s(self) -> float:
        """Seconds of an image, to the digit that the tables have."""
        return self.row["measured_s"] or round(self.record.times.per_image_s, 3)

    def answer(self, place: int) -> tuple[str, float] | None:
        """Return what it says of an image and in how many seconds, or None if it was left out."""
        if place >= len(self.predictions):
            return None
        return self.predictions[place], self.record.times.images[place][1]


def show(
    showcase: Showcase, source: Path, out: Path, samples: Sequence[Sample], display: WholeProgress
) -> list[Shown]:
    """Run every column over the images, one by one, unless that is stored.

    `out` becomes a folder of runs: a copy of the showcase, with a record beside
    each network, and the rows of the results.
    """
    size = sum(file.stat().st_size for file in source.rglob("*"))
    require_room(out, size + _REPORT_BYTES)
    try:
        shutil.copytree(source, out, copy_function=shutil.copyfile, dirs_exist_ok=True)
    except shutil.Error as error:  # of every file that could not be copied
        _, file, reason = error.args[0][0]
        raise UserError(f"cannot write {file}: {reason}") from error
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror or error}") from error
    found: list[Shown] = []
    for column in showcase.columns:
        display.begin(column.title)
        found.append(_run(column, showcase, out, samples[: column.images], display))
        display.end()
        write_rows(out / RESULTS_FILE, [one.row for one in found])
        write_rows(out / PREDICTIONS_FILE, _predictions(samples, found))
    return found


def _run(
    column: Column,
    showcase: Showcase,
    folder: Path,
    samples: Sequence[Sample],
    display: WholeProgress,
) -> Shown:
    network = next(one for one in showcase.networks if one.name == column.network)
    form = column.form
    model = model_in(folder, network.name, form)
    profile = with_engine_of(model, load_profile(showcase.profile))
    pictures = [folder / sample.file for sample in samples]

    def make() -> Measurement:
        result = run(model, pictures, profile, progress=display.count, insecure=True)
        checkpoint = Checkpoint.load(model_in(folder, network.name, "plain"))
        display.count(COMPARING, 0, 1)
        truths = np.array([result.classes.index(sample.truth) for sample in samples])
        return judge(
            result, profile, checkpoint, list(pictures), labels=truths, top1=network.top1[form]
        )

    made_from = {
        "model": digest_of(model),
        "profile": encode(profile),
        "images": [sample.file for sample in samples],
        "version": __version__,
    }
    outcome = measure_once(folder / network.name, form, made_from, make)
    assert outcome.value is not None
    known = {"network": network.name, "config": network.config, "seed": network.seed}
    return Shown(
        title=column.title,
        predictions=outcome.value.predictions,
        record=outcome.value.record,
        row={**known, **outcome.value.row},
        reused=outcome.status is Status.REUSED,
    )


def _predictions(samples: Sequence[Sample], found: Sequence[Shown]) -> list[dict[str, Any]]:
    rows = []
    for place, sample in enumerate(samples):
        row: dict[str, Any] = {"image": sample.file, "truth": sample.truth}
        for one in found:
            predicted, seconds = one.answer(place) or ("", None)
            row[one.title] = predicted
            row[one.title + SECONDS] = "" if seconds is None else round(seconds, 3)
        rows.append(row)
    return rows
