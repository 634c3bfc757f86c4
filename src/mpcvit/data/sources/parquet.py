"""Parquet files as the Hugging Face hub serves image data sets."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcvit.artifacts.config import DataSource
from mpcvit.data.images import decode_image
from mpcvit.data.sources.base import Example, Examples, SplitName
from mpcvit.errors import UserError, needs_extra

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_PREFIX = re.compile(r"(train|test|validation|valid|val)(?![a-z])", re.IGNORECASE)
_SHARD = re.compile(r"-of-(\d+)")
_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "fine_label")
_ROWS_AT_ONCE = 256  # decoded in turn; bounds memory to a few MB of compressed pictures


@dataclass(frozen=True, kw_only=True)
class _Table:
    """One open file with the two columns that matter."""

    path: Path
    file: "pq.ParquetFile"
    image: str
    label: str

    @property
    def rows(self) -> int:
        return self.file.metadata.num_rows


@dataclass(frozen=True)
class ParquetSource:
    """A split is the files whose names begin with its name; `test` beats `validation`."""

    root: Path
    kind = DataSource.PARQUET

    @staticmethod
    def fits(root: Path) -> bool:
        return root.is_dir() and bool(_parquet_files(root))

    def files(self) -> tuple[Path, ...]:
        return _parquet_files(self.root)

    def open_split(self, split: SplitName, channels: int) -> Examples:
        tables = self._tables(split)
        names = _class_names(tables[0])
        return Examples(
            classes=names or self._numbered_classes(),
            count=sum(table.rows for table in tables),
            stream=_examples(tables, channels),
        )

    def _split_files(self, split: SplitName) -> list[Path]:
        by_prefix: dict[str, list[Path]] = {}
        for path in self.files():
            if match := _PREFIX.match(path.name):
                by_prefix.setdefault(match[1].lower(), []).append(path)
        wanted = ("train",) if split == "train" else ("test", "valid", "validation", "val")
        return next((by_prefix[prefix] for prefix in wanted if prefix in by_prefix), [])

    def _tables(self, split: SplitName) -> list[_Table]:
        paths = self._split_files(split)
        if not paths:
            prefixes = "train-" if split == "train" else "test-, valid- or validation-"
            raise UserError(f"{self.root} has no parquet file whose name begins with {prefixes}")
        if len({path.parent for path in paths}) > 1:
            raise UserError(
                f"{self.root} holds {split} files in several folders; set data.path to one of "
                + ", ".join(sorted({str(path.parent) for path in paths}))
            )
        _refuse_missing_shards(paths, split)
        return [_open(path) for path in paths]

    def _numbered_classes(self) -> tuple[str, ...]:
        """Return the classes by number: both splits together show how many there are."""
        largest = -1
        for split in ("train", "test"):
            for table in self._tables(split) if self._split_files(split) else ():
                for batch in _batches(table, [table.label]):
                    labels = (label for label in batch[table.label] if isinstance(label, int))
                    largest = max([largest, *labels])
        return tuple(str(label) for label in range(largest + 1))


def _parquet_files(root: Path) -> tuple[Path, ...]:
    paths = sorted(root.rglob("*.parquet"))
    return tuple(
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def _refuse_missing_shards(paths: list[Path], split: SplitName) -> None:
    counts = {int(match[1]) for path in paths if (match := _SHARD.search(path.name))}
    if counts and counts != {len(paths)}:
        raise UserError(
            f"{paths[0].parent} holds {len(paths)} {split} files, but {paths[0].name} is one of "
            f"{max(counts)}; download the others or remove the strays"
        )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes Arrow raise into one sentence."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(f"{path} cannot be read as parquet: {reason}; download it again") from error


def _open(path: Path) -> _Table:
    with needs_extra("train", f"{path}, a parquet file,"):
        import pyarrow.parquet as pq
    with _reading(path):
        file = pq.ParquetFile(path)
        schema = file.schema_arrow
    return _Table(
        path=path,
        file=file,
        image=_pick(_IMAGE_COLUMNS, schema.names, "image", path),
        label=_pick(_LABEL_COLUMNS, schema.names, "label", path),
    )


def _pick(candidates: tuple[str, ...], names: list[str], what: str, path: Path) -> str:
    for name in candidates:
        if name in names:
            return name
    raise UserError(
        f"{path} has no {what} column: looked for {' or '.join(candidates)} "
        f"among {', '.join(names)}"
    )


def _class_names(table: _Table) -> tuple[str, ...]:
    metadata = (table.file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(metadata)["info"]["features"][table.label]["names"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def _batches(table: _Table, columns: list[str]) -> Iterator[dict[str, list[Any]]]:
    with _reading(table.path):
        batches = table.file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns)
    while True:
        with _reading(table.path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch.to_pydict()


def _examples(tables: list[_Table], channels: int) -> Iterator[Example]:
    for table in tables:
        row = 0
        for batch in _batches(table, [table.image, table.label]):
            for cell, label in zip(batch[table.image], batch[table.label], strict=True):
                where = f"row {row} of {table.path}"
                yield Example(_decode(cell, channels, where), _as_label(label, where), where)
                row += 1


def _decode(cell: Any, channels: int, where: str) -> Any:
    data = cell.get("bytes") if isinstance(cell, dict) else None
    if not isinstance(data, bytes):
        raise UserError(f"{where} holds no image bytes")
    return decode_image(data, channels=channels, where=where)


def _as_label(label: Any, where: str) -> int:
    if not isinstance(label, int):
        raise UserError(f"{where} has the label {label!r}, which is not a whole number")
    return label
