"""The dealer's log: a line for each connection, written by a thread of its own.

A log that blocks or fails costs lines, never an answer.
"""

import contextlib
import json
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

_MOST_WAITING = 1_000  # lines
_CLOSE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Served:
    """A line of the log: who asked for what, what it took, how it ended. Never a seed."""

    time: str
    peer: str
    certificate: str  # the name in it
    job: str = ""  # the beginning of its digest
    what: str = ""
    sent_bytes: int = 0
    seconds: float = 0.0
    ended: str = "done"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """
        >>> print(Served(time="now", peer="10.0.0.1:5", certificate="server", what="terms"))
        now peer=10.0.0.1:5 certificate="server" job="" what="terms" sent_bytes=0 seconds=0.0 \
ended="done"
        """
        rest = {name: value for name, value in self.to_dict().items() if name != "time"}
        quoted = {"certificate", "job", "what", "ended"}
        shown = (f"{k}={json.dumps(v) if k in quoted else v}" for k, v in rest.items())
        return " ".join([self.time, *shown])


Log = Callable[[Served], None]


@dataclass(kw_only=True)
class Visit:
    """What is known of a connection while it lasts."""

    peer: str
    certificate: str = ""
    job: str = ""
    what: str = ""
    sent_bytes: int = 0
    ended: str = "done"

    def to_line(self, seconds: float) -> Served:
        return Served(
            time=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            peer=self.peer,
            certificate=self.certificate,
            job=self.job[:12],
            what=self.what,
            sent_bytes=self.sent_bytes,
            seconds=round(seconds, 3),
            ended=self.ended,
        )


class LogWriter:
    """Writes lines in order, as far as they can be written."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lines: queue.Queue[Served | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, line: Served) -> None:
        """Take a line, or lose it if a thousand are waiting to be written."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line)

    def close(self) -> None:
        """Write what waits, unless that takes too long."""
        try:
            self._lines.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._log(line)
            except Exception:  # a closed pipe, a full disk: the next line may be written
                continue
