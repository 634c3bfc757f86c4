"""The server's log: a line for each client that came."""

import time
from dataclasses import dataclass, field

from mpcvit.hosts.log import LogLine, now
from mpcvit.secure.parties.events import Journal, StageDone
from mpcvit.secure.parties.roles import Address, Role


@dataclass(kw_only=True)
class ConnectionLogLine(LogLine):
    """A line of the log: who came, what it cost, how it ended. Never a share or a value."""

    images: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchanges: int = 0
    seconds: float
    ended: str  # "done", or why not


@dataclass(kw_only=True)
class Visitor:
    """The knowledge of a visit while it lasts."""

    peer: Address
    certificate: str = ""
    ended: str = ""
    journal: Journal | None = None
    _time: str = field(default_factory=now)
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
