"""What a report says first: one sentence, one number, and the pictures that were classified."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpcvit.artifacts.record import RunRecord
from mpcvit.report.charts.chart import number
from mpcvit.report.collect import Collected, Named, Table, TableKind

SECONDS = ", seconds"
"""How a table of predictions names a run's column of seconds, behind the run's own name."""

_MOST_PICTURES = 12
_SIDE = 192  # pixels of an embedded picture


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A sentence, a number, and what stands behind the number."""

    sentence: str
    number: str
    facts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of one run for a picture, and its seconds."""

    run: str
    predicted: str  # empty: the run left the picture out
    seconds: float | None
    is_right: bool


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture with its truth and its answers; `source` is a data address, or empty."""

    name: str
    truth: str
    source: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A private run, by the second of an image."""

    title: str
    is_plain: bool
    batch: int
    images: int
    seconds: float
    origin: str
    agree: int | None = None
    top1: float | None = None

    @property
    def words(self) -> str:
        several = "" if self.batch == 1 else f", {self.batch} at a time"
        accuracy = "" if self.top1 is None else f"; {self.top1:.2f} % of the test images right"
        return f"{self.title}: {self.seconds:.1f} s an image{several}, {self.origin}{accuracy}"


def headline(collected: Collected) -> Headline | None:
    """Return what a reader should remember of a report, or None if it has no such number."""
    runs = list(_of_results(collected)) or [*_of_records(collected)]
    return _of_runs(runs) if runs else _of_accuracies(collected)


def pictures(collected: Collected) -> list[Picture]:
    """Return the first pictures of the first table of predictions."""
    for table in collected.tables_of(TableKind.PREDICTIONS):
        return [_picture(table, row) for row in table.value.rows[:_MOST_PICTURES]]
    return []


def left_out(collected: Collected) -> int:
    """Return how many pictures of that table are not shown."""
    tables = collected.tables_of(TableKind.PREDICTIONS)
    return max(0, len(tables[0].value.rows) - _MOST_PICTURES) if tables else 0


def _of_runs(runs: Sequence[_Run]) -> Headline:
    fastest = min(runs, key=lambda run: run.seconds)
    plain = next((run for run in runs if run.is_plain and run.batch == fastest.batch), None)
    factor = 1.0 if plain is None else plain.seconds / fastest.seconds
    judged = [run for run in runs if run.agree is not None]
    parts = [_agreement(judged)] if judged else []
    if plain is None or factor < 1.05:
        parts = parts or ["A private prediction, and what it took"]
        return Headline(
            sentence="; ".join(parts),
            number=f"{fastest.seconds:.1f} s",
            facts=(fastest.words,),
        )
    if parts:
        parts.append(f"{factor:.1f} times faster than the plain network")
    else:
        parts.append(f"Private predictions {factor:.1f} times faster than the plain network's")
    return Headline(
        sentence="; ".join(parts),
        number=f"{factor:.1f} ×",
        facts=(plain.words, fastest.words),
    )


def _agreement(runs: Sequence[_Run]) -> str:
    """Say how often private and plaintext predictions are the same, over all runs."""
    agree, images = sum(run.agree or 0 for run in runs), sum(run.images for run in runs)
    if agree == images:
        agree = images = max(run.images for run in runs)
    return f"Private predictions equal plaintext on {agree} of {images} images"


def _of_results(collected: Collected) -> Iterator[_Run]:
    """Yield the rows of the first table of private runs that says how long they took."""
    for table in collected.tables_of(TableKind.PIPELINE):
        found = False
        for row in table.value.rows:
            for origin in ("measured", "modelled"):
                seconds = number(row.get(f"{origin}_s"))
                if seconds:
                    found = True
                    agree = number(row.get("agree"))
                    yield _Run(
                        title=f"{row['network']}, {row['form']}",
                        is_plain=row["form"] == "plain",
                        batch=int(number(row.get("batch")) or 1),
                        images=int(number(row.get("images")) or 1),
                        seconds=seconds,
                        origin=origin,
                        agree=None if agree is None else int(agree),
                        top1=number(row.get("top1")),
                    )
                    break
        if found:
            return


def _of_records(collected: Collected) -> Iterator[_Run]:
    for found in collected.records:
        record: RunRecord = found.value
        if record.was_timed:
            yield _Run(
                title=f"{found.name.split(',')[0]}, {record.form}",
                is_plain=record.form == "plain",
                batch=record.batches[0].images,
                images=record.images,
                seconds=record.times.per_image_s,
                origin="measured",
            )


def _of_accuracies(collected: Collected) -> Headline | None:
    """Return the most accurate network, of tables or of checkpoints."""
    found = [
        (top1, row["network"])
        for table in collected.tables_of(TableKind.SUMMARY)
        for row in table.value.rows
        if (top1 := number(row["top1_mean"])) is not None
    ] or [
        (100 * network.value.row.top1, network.name)
        for network in collected.networks
        if network.value.row.top1 is not None
    ]
    if not found:
        return None
    top1, name = max(found)
    several = f", the best of {len(found)} networks," if len(found) > 1 else ""
    return Headline(
        sentence=f"{name}{several} is right on {top1:.1f}\u00a0% of the images it was judged by",
        number=f"{top1:.1f} %",
        facts=("top-1 accuracy, in plaintext", "No private run is part of this report."),
    )


def _picture(table: Named[Table], row: dict[str, str]) -> Picture:
    runs = [name for name in row if name not in ("image", "truth") and not name.endswith(SECONDS)]
    return Picture(
        name=row["image"],
        truth=row["truth"],
        source=_embed(table.path.parent / row["image"]),
        answers=tuple(
            Answer(
                run=name,
                predicted=row[name],
                seconds=number(row.get(name + SECONDS)),
                is_right=row[name] == row["truth"],
            )
            for name in runs
        ),
    )


def _embed(file: Path) -> str:
    """Return a small copy of a picture as a data address, or nothing if it cannot be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            small = opened.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError):
        return ""
    small.thumbnail((_SIDE, _SIDE))
    content = io.BytesIO()
    small.save(content, format="PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
