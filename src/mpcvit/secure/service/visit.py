"""The server's log: a line for each client that came."""

import json
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from mpcvit.secure.parties.events import Journal, StageDone
from mpcvit.secure.parties.roles import Address, Role


@dataclass(frozen=True, kw_only=True)
class ConnectionLogLine:
    """A line of the log: who came, what it cost, how it ended. Never a share or a value."""

    time: str
    peer: Address
    certificate: str  # the client's name on the list
    images: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchanges: int = 0
    seconds: float
    ended: str  # "done", or why not

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """
        >>> line = {"peer": "10.0.0.1:5", "certificate": "", "seconds": 1.5, "ended": "done"}
        >>> print(ConnectionLogLine(time="now", **line))
        now peer=10.0.0.1:5 certificate="" images=0 sent_bytes=0 received_bytes=0 exchanges=0 \
seconds=1.5 ended="done"
        """
        rest = (name for name in self.to_dict() if name != "time")
        return " ".join([self.time, *(f"{name}={self._shown(name)}" for name in rest)])

    def _shown(self, name: str) -> str:
        value = getattr(self, name)
        return json.dumps(value) if name in ("certificate", "ended") else str(value)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(kw_only=True)
class Visitor:
    """What is known of a visit while it lasts."""

    peer: Address
    certificate: str = ""
    ended: str = ""
    journal: Journal | None = None
    _time: str = field(default_factory=_now)
    _started: float = field(default_factory=time.monotonic)

    @property
    def images(self) -> int:
        """How many images were answered so far."""
        return sum(stage.images for stage in self._stages() if stage.cost.name == "output")

    def to_line(self) -> ConnectionLogLine:
        costs = [stage.cost for stage in self._stages()]
        return ConnectionLogLine(
            time=self._time,
            peer=self.peer,
            certificate=self.certificate,
            images=self.images,
            sent_bytes=sum(cost.sent_bytes for cost in costs),
            received_bytes=sum(cost.received_bytes for cost in costs),
            exchanges=sum(cost.exchanges for cost in costs),
            seconds=round(time.monotonic() - self._started, 2),
            ended=self.ended,
        )

    def _stages(self) -> list[StageDone]:
        return [] if self.journal is None else self.journal.all(Role.MODEL_OWNER, StageDone)
