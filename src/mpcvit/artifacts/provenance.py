"""Where a number comes from: provenance, and the rows that stages write."""

import csv
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from mpcvit.errors import UserError
from mpcvit.storage import write_text

# The files of a run folder.
MODEL_FILE = "model.safetensors"
PROGRAM_FILE = "program.json"
STATE_FILE = "state.safetensors"
LOG_FILE = "log.jsonl"
CURVES_FILE = "curves.png"
SEARCH_FILE = "search.json"
SEARCH_FIGURE_FILE = "search.png"
TENSORBOARD_FOLDER = "tensorboard"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The code and the machine behind a result."""

    created: str
    commit: str
    versions: dict[str, str] = field(default_factory=dict)
    hardware: str = ""

    @classmethod
    def current(cls) -> "Environment":
        return cls(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            commit=_commit(),
            versions=_versions(),
            hardware=_hardware(),
        )


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of a model: what it was made from, and how well it does."""

    origin: str  # "trained", or what was imported
    environment: Environment
    config: dict[str, Any] = field(default_factory=dict)  # the whole experiment, resolved
    data_fingerprint: str = ""
    started_from: str = ""  # digest of the parameters that its training began with
    teacher: str = ""  # digest of the parameters that it was distilled from
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # files are passed on, and their readers need no path or host of the trainer
        private = (("data", "path"), ("distributed", "coordinator"))
        cleared = {
            section: {**self.config[section], key: ""}
            for section, key in private
            if section in self.config
        }
        object.__setattr__(self, "config", {**self.config, **cleared})

    @property
    def top1(self) -> float | None:
        """Return the accuracy by which the training judged, or None if it was not measured."""
        return self.metrics.get(f"{judged_by(self.metrics)}_top1")


def judged_by(metrics: Mapping[str, Any]) -> str:
    """Return the images that a training judged by: "validation" if it set some apart, or "test".

    >>> judged_by({"validation_top1": 0.6}), judged_by({"test_top1": 0.6})
    ('validation', 'test')
    """
    return "validation" if "validation_top1" in metrics else "test"


def clear_run(folder: Path) -> None:
    """Delete the files of an earlier run, so that the two cannot be confused."""
    for name in (
        *(MODEL_FILE, STATE_FILE, LOG_FILE, CURVES_FILE),
        *(SEARCH_FILE, SEARCH_FIGURE_FILE),
    ):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / TENSORBOARD_FOLDER, ignore_errors=True)


def content_digest(document: Any) -> str:
    """Return a short digest of plain values."""
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; what a row lacks of the columns of others stays empty."""
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; there are none where there is no file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read the table {path}: {error}") from error


@cache
def _commit() -> str:
    """Return the checkout's commit, with a mark if files were changed since."""
    source = Path(__file__).parents[1]
    try:
        # a source tree only: an installed package may lie inside someone else's repository
        top = _git(source, "rev-parse", "--show-toplevel")
        if not (Path(top) / "src" / "mpcvit").samefile(source):
            return "unknown"
        changed = "-changed" if _git(source, "status", "--porcelain", "--", ".") else ""
        return _git(source, "rev-parse", "--short=12", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("mpcvit", "jax", "flax", "optax", "numpy", "spu"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _hardware() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores"


def advice_on(folder: Path) -> str:
    """Say what to do with a folder that was given in place of a model, if it looks like one."""
    if (folder / PROGRAM_FILE).is_file():
        return "it is a lowered program already, and no checkpoint; 'mpcvit explain' shows it"
    if (folder / "config.json").is_file():
        return (
            "it holds foreign weights; make a checkpoint of them first: "
            f"mpcvit import {folder} --out model.safetensors"
        )
    if (folder / MODEL_FILE).is_file():
        return f"it is the folder of a training; give the checkpoint in it: {folder / MODEL_FILE}"
    return ""
