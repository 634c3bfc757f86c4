"""What a set of places holds for the report: networks, searches, records, logs and tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import LOG_FILE, MODEL_FILE, SEARCH_FILE, Provenance, read_rows
from mpcvit.artifacts.record import FORMAT as RECORD_FORMAT
from mpcvit.artifacts.record import RunRecord
from mpcvit.artifacts.search import SearchResult
from mpcvit.codec import load
from mpcvit.errors import UserError
from mpcvit.model.checkpoint import FORMAT as CHECKPOINT_FORMAT
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.progress import Progress, counted, quiet
from mpcvit.report.networks import NetworkRow
from mpcvit.train.log import read_log

Thing = TypeVar("Thing")


class TableKind(Enum):
    """The tables that `mpcvit` writes: what each is called, and the columns that tell it apart."""

    PIPELINE = "pipeline", "network form top1 exchanges"
    LOWERING = "plain against lowered", "network form batch exchanges"
    SUMMARY = "summary of an experiment", "network top1_mean modelled_s"
    RUNS = "runs of an experiment", "network seed top1 modelled_s"
    EPOCHS = "epochs of an experiment", "network seed epoch train_loss"
    SEARCHES = "searches of an experiment", "search mean_alpha_by_layer"
    LAYERS = "layers", "network layer modelled_s sent_mb"
    NETWORKS = "networks", "network exchanges modelled_s"
    PRECISION = "precision", "attention variance relative_error"
    ATTENTION = "attention", "attention exchanges modelled_s"
    BREAKDOWN = "breakdown", "table part modelled_s"
    AGREEMENT = "agreement", "model images agree"
    PREDICTIONS = "predictions", "image truth"
    SPEED = "speed", "what images_per_s"

    @property
    def title(self) -> str:
        return self.value[0]

    @property
    def columns(self) -> set[str]:
        return set(self.value[1].split())


@dataclass(frozen=True, kw_only=True)
class Table:
    """A CSV file of ours."""

    kind: TableKind
    rows: tuple[dict[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """A trained network without its weights."""

    row: NetworkRow
    model: ModelConfig
    architecture: Architecture
    provenance: Provenance

    @property
    def config(self) -> str:
        """The name of the configuration it was trained by."""
        return self.provenance.config.get("name", "")


@dataclass(frozen=True, kw_only=True)
class Named(Generic[Thing]):
    """A thing that was found, its place, and a short name that tells it from the others."""

    name: str
    path: Path
    value: Thing


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The things that were found, in the order of the places; and what could not be read."""

    networks: tuple[Named[TrainedNetwork], ...] = ()
    searches: tuple[Named[SearchResult], ...] = ()
    records: tuple[Named[RunRecord], ...] = ()
    logs: tuple[Named[list[dict[str, Any]]], ...] = ()
    tables: tuple[Named[Table], ...] = ()
    skipped: tuple[str, ...] = ()

    def tables_of(self, kind: TableKind) -> list[Named[Table]]:
        return [table for table in self.tables if table.value.kind is kind]

    @property
    def is_empty(self) -> bool:
        return not (self.networks or self.searches or self.records or self.logs or self.tables)


def collect(
    places: Sequence[Path],
    latency: LatencyTable | None = None,
    progress: Progress = quiet,
) -> Collected:
    """Read files, and whatever folders hold; a named file that cannot be read is refused."""
    named = set()
    for place in places:
        if not place.exists():
            raise UserError(f"there is no run, record or table {place}")
        if place.is_file():
            named.add(place)
    files = list(dict.fromkeys(file for place in places for file in _files(place)))
    found: dict[type, list[tuple[Path, Any]]] = {}
    skipped = []
    for file in counted("reading", files, progress):
        try:
            held = _read(file, latency)
        except UserError as error:
            if file in named:
                raise
            skipped.append(str(error))
            continue
        if held is not None:
            found.setdefault(type(held), []).append((file, held))
        elif file in named:
            raise UserError(f"{file} is no run, record or table of mpcvit")

    def named_apart(kind: type) -> tuple[Any, ...]:
        own = found.get(kind, [])
        names = shortest_unique_names([_home(file) for file, _ in own])
        return tuple(
            Named(name=name, path=file, value=held)
            for name, (file, held) in zip(names, own, strict=True)
        )

    return Collected(
        networks=named_apart(TrainedNetwork),
        searches=named_apart(SearchResult),
        records=named_apart(RunRecord),
        logs=named_apart(list),
        tables=named_apart(Table),
        skipped=tuple(skipped),
    )


def shortest_unique_names(places: Sequence[Path]) -> list[str]:
    """Return the shortest name of each path that no other path has.

    >>> shortest_unique_names([Path("runs/a/seed-0"), Path("runs/b/seed-0"), Path("runs/b/seed-1")])
    ['a', 'b, seed-0', 'b, seed-1']
    """
    choices = {place: _candidates(place) for place in places}

    def shortest(own: list[str]) -> str:
        for step, name in enumerate(own):
            taken = Counter(other[min(step, len(other) - 1)] for other in choices.values())
            if taken[name] == 1:
                return name
        return own[-1]

    return [shortest(choices[place]) for place in places]


def _candidates(place: Path) -> list[str]:
    """Return names of a place, from short to long."""
    parts = [part for part in place.parts if part not in (place.anchor, "..")]
    seed = ""
    if len(parts) > 1 and parts[-1].startswith("seed-"):
        seed = f", {parts.pop()}"
    tails = ["/".join(parts[-length:]) for length in range(1, len(parts) + 1)]
    return [name for tail in tails for name in dict.fromkeys((tail, tail + seed))] or [str(place)]


def _home(file: Path) -> Path:
    """Return what names a file: for a run's file its folder, for any other the file itself."""
    in_run = file.name in (MODEL_FILE, SEARCH_FILE, LOG_FILE) or (file.parent / MODEL_FILE).exists()
    return file.parent if in_run and file.parent.name else file.with_suffix("")


def _files(place: Path) -> Iterable[Path]:
    if place.is_file():
        return [place]
    wanted = (".safetensors", ".json", ".jsonl", ".csv")
    return sorted(file for file in place.rglob("*") if file.suffix in wanted and file.is_file())


def _read(file: Path, latency: LatencyTable | None) -> Any:
    """Return the content of a file, or None if a report has no use for it."""
    if file.name == MODEL_FILE or (
        file.suffix == ".safetensors" and _holds(file, CHECKPOINT_FORMAT)
    ):
        checkpoint = Checkpoint.load(file)
        return TrainedNetwork(
            row=NetworkRow.of(str(file), checkpoint, latency),
            model=checkpoint.model,
            architecture=checkpoint.architecture,
            provenance=checkpoint.provenance,
        )
    if file.name == SEARCH_FILE:
        return SearchResult.load(file)
    if file.name == LOG_FILE:
        return read_log(file.parent) or None
    if file.suffix == ".json":
        return load(RunRecord, file) if _holds(file, RECORD_FORMAT) else None
    if file.suffix == ".csv":
        return _read_table(file)
    return None


def _holds(file: Path, text: str) -> bool:
    """Return whether a file says its format near its beginning."""
    try:
        with file.open("rb") as opened:
            return text.encode() in opened.read(1 << 16)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error


def _read_table(file: Path) -> Table | None:
    rows = tuple(read_rows(file))
    columns = set(rows[0]) if rows else set()
    for kind in TableKind:
        if columns.issuperset(kind.columns):
            return Table(kind=kind, rows=rows)
    return None
