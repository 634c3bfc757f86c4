"""A run's log: one JSON line per epoch, mirrored to TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.artifacts.provenance import LOG_FILE, TENSORBOARD_FOLDER
from mpcvit.errors import UserError, needs_extra
from mpcvit.storage import write_text


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the epochs that a run has logged, oldest first."""
    path = folder / LOG_FILE
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:  # the last line of a killed run may be cut
            break
    return rows


class RunLog:
    """Appends epochs; on resume, forgets those after the saved step."""

    def __init__(self, folder: Path, *, step: int) -> None:
        with needs_extra("train", "the log of a training"):
            from tensorboardX import SummaryWriter  # slow to import

        rows = [row for row in read_log(folder) if row["step"] <= step]
        write_text(folder / LOG_FILE, "".join(json.dumps(row) + "\n" for row in rows))
        try:
            self._file = (folder / LOG_FILE).open("a", encoding="utf-8")
            self._board = SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=step)
        except OSError as error:
            raise UserError(f"cannot write the log in {folder}: {error.strerror}") from error

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for name, value in row.items():
            if isinstance(value, list):
                for layer, values in enumerate(value):
                    self._board.add_scalar(f"{name}/layer_{layer}", np.mean(values), row["step"])
            elif name != "step":
                self._board.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._file.close()
        self._board.close()
