"""The log of a port: a line for each connection, written by a thread of its own.

A log that blocks or fails costs lines, never an answer.
"""

import contextlib
import json
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

_MAX_WAITING = 1_000  # lines
_CLOSE_S = 2.0


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(kw_only=True)
class LogLine:
    """A line of a log, which is completed while the connection lasts."""

    time: str = field(default_factory=now)  # when the connection came
    peer: str
    certificate: str = ""  # the name in it

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """Return the line as text.

        >>> print(LogLine(time="now", peer="10.0.0.1:5", certificate="server"))
        now peer=10.0.0.1:5 certificate="server"
        """
        values = self.to_dict()
        parts = [values.pop("time"), f"peer={values.pop('peer')}"]
        return " ".join(
            [*parts, *(f"{name}={json.dumps(value)}" for name, value in values.items())]
        )


class LogWriter:
    """Writes lines in order, as far as they can be written; `lost` is called for each other one."""

    def __init__(self, lost: Callable[[], None] = lambda: None) -> None:
        self._lost = lost
        self._lines: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, write: Callable[[], None]) -> None:
        """Have a line written, or lose it if a thousand are waiting."""
        try:
            self._lines.put_nowait(write)
        except queue.Full:
            self._lost()

    def close(self) -> None:
        """Write the lines that wait, unless that takes too long."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSE_S)
            self._thread.join(_CLOSE_S)

    def _write(self) -> None:
        while (write := self._lines.get()) is not None:
            try:
                write()
            except Exception:  # a closed pipe, a full disk: the next line may be written
                self._lost()
