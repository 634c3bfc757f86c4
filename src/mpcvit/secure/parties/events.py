"""Events that parties report, never with a secret; and the record that they amount to."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.provenance import Environment
from mpcvit.artifacts.record import (
    BatchCost,
    OfflineCost,
    RunRecord,
    SetUpCost,
    StageCost,
)
from mpcvit.codec import decode, encode, tagged
from mpcvit.progress import Progress, quiet
from mpcvit.secure.answers import BatchAnswers, ImageAnswer, KnownModel
from mpcvit.secure.parties.agreement import Request
from mpcvit.secure.parties.roles import Role

TakeAnswer = Callable[[int, ImageAnswer], None]
"""Takes an image's index and its answer, as soon as it is there."""


def ignore_answer(index: int, answer: ImageAnswer) -> None:
    """Do nothing with an answer."""


@tagged("ready")
@dataclass(frozen=True, kw_only=True)
class Ready:
    """The party has loaded what it owns."""


@tagged("connected")
@dataclass(frozen=True, kw_only=True)
class Connected:
    """All parties are there."""

    connect_s: float = 0.0


@tagged("inputs made")
@dataclass(frozen=True, kw_only=True)
class InputsMade:
    """The images fit the model now."""

    resized: int
    notes: tuple[str, ...] = ()


@tagged("requested")
@dataclass(frozen=True, kw_only=True)
class Requested:
    """The data owner knows the model's public half, and has asked for its images."""

    request: Request
    model: KnownModel


@tagged("progressed")
@dataclass(frozen=True, kw_only=True)
class Progressed:
    """A part of a longer step is done."""

    what: str
    done: int
    total: int


@tagged("prepared")
@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The parties hold the same compiled program."""

    compile_s: float
    job_s: float = 0.0
    architecture: str
    program: str
    form: str
    stages: int
    notes: tuple[str, ...]


@tagged("weights shared")
@dataclass(frozen=True, kw_only=True)
class WeightsShared:
    """The weights are split among the parties, and the protocol is set up."""

    weights_s: float
    warm_up_s: float
    warm_up_bytes: int
    warm_up_exchanges: int
    received_bytes: int


@tagged("material fetched")
@dataclass(frozen=True, kw_only=True)
class MaterialFetched:
    """The dealer's material for the next part of the job is there."""

    received_bytes: int
    fetch_s: float
    wait_s: float


@tagged("stage done")
@dataclass(frozen=True, kw_only=True)
class StageDone:
    """One stage of one batch is computed."""

    batch: int
    images: int
    cost: StageCost


@tagged("finished")
@dataclass(frozen=True, kw_only=True)
class Finished:
    """All batches are computed."""

    peak_bytes: int


@tagged("measured")
@dataclass(frozen=True, kw_only=True)
class Measured:
    """A function was run on random inputs."""

    cost: StageCost


@tagged("answered")
@dataclass(frozen=True, kw_only=True)
class Answered:
    """The data owner's answers for one batch; its own supervisor alone is sent them."""

    answers: BatchAnswers


@tagged("done")
@dataclass(frozen=True, kw_only=True)
class Done:
    """Every party has received all that it was sent."""


@tagged("failed")
@dataclass(frozen=True, kw_only=True)
class Failed:
    """The party cannot go on."""

    message: str
    of_dealer: bool = False


Event = (
    Ready
    | Connected
    | InputsMade
    | Requested
    | Progressed
    | Prepared
    | WeightsShared
    | MaterialFetched
    | StageDone
    | Finished
    | Measured
    | Answered
    | Done
    | Failed
)
Report = Callable[[Event], None]
Kind = TypeVar("Kind")


def to_line(event: Event) -> bytes:
    """Return an event as a line of JSON.

    >>> to_line(Connected(connect_s=0.5))
    b'{"is": "connected", "connect_s": 0.5}\\n'
    """
    return json.dumps(encode(event)).encode() + b"\n"


def from_line(line: bytes) -> Event:
    """Return the event of a line.

    >>> from_line(b'{"is": "connected", "connect_s": 0.5}')
    Connected(connect_s=0.5)
    """
    return decode(Event, json.loads(line), "event")  # type: ignore[reportArgumentType]


def report_progress(report: Report, what: str) -> Callable[[int, int], None]:
    """Return an observer of a longer step that reports what is done of it."""
    return lambda done, total: report(Progressed(what=what, done=done, total=total))


@dataclass
class Journal:
    """Every party's events in the order they came, and progress made of the data owner's."""

    progress: Progress = quiet
    answered: TakeAnswer = ignore_answer
    started: float = field(default_factory=time.perf_counter)
    events: dict[Role, list[Event]] = field(default_factory=lambda: {role: [] for role in Role})
    answers: list[ImageAnswer] = field(default_factory=list)  # in the order of the images
    _known: dict[tuple[Role, type], float] = field(default_factory=dict)  # when first

    def add(self, role: Role, event: Event) -> None:
        self.events[role].append(event)
        self._known.setdefault((role, type(event)), time.perf_counter() - self.started)
        if role is not Role.DATA_OWNER:
            return
        match event:
            case Connected():
                self.progress("connecting", 1, 1)
            case Progressed():
                self.progress(event.what, event.done, event.total)
            case StageDone():
                request, prepared = self.find(role, Requested).request, self.find(role, Prepared)
                done, total = len(self.all(role, StageDone)), len(request.batches)
                self.progress("running", done, total * prepared.stages)
            case Answered():
                for answer in self.find(role, Requested).model.answers(event.answers):
                    self.answers.append(answer)
                    self.answered(len(self.answers) - 1, answer)

    def find(self, role: Role, kind: type[Kind]) -> Kind:
        """Return a party's first event of a kind."""
        return next(event for event in self.events[role] if isinstance(event, kind))

    def all(self, role: Role, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events[role] if isinstance(event, kind)]

    def knows(self, role: Role, kind: type) -> bool:
        return (role, kind) in self._known

    def seconds_until(self, role: Role, kind: type) -> float:
        """Return the seconds from the start to a party's first event of a kind."""
        return self._known[role, kind]

    def where(self, role: Role) -> str:
        """Return what a party did last, for a sentence about its end."""
        if stages := self.all(role, StageDone):
            return f"after {stages[-1].cost.name} of batch {stages[-1].batch}"
        return "before the first stage"


def make_record(journal: Journal, profile: Profile, *, transport: str) -> RunRecord:
    """Return the data owner's counts, with the computing time of the busiest party."""
    owner, roles = Role.DATA_OWNER, [role for role in Role if journal.knows(role, Finished)]
    prepared, shared = journal.find(owner, Prepared), journal.find(owner, WeightsShared)
    connect_s = journal.find(owner, Connected).connect_s
    warnings = (profile.warning,) if profile.warning else ()
    return RunRecord(
        transport=transport,
        profile=profile,
        architecture=prepared.architecture,
        program=prepared.program,
        form=prepared.form,
        reveal=journal.find(owner, Requested).model.reveal,
        set_up=SetUpCost(
            start_s=journal.seconds_until(owner, Connected) - connect_s,
            connect_s=connect_s,
            compile_s=prepared.compile_s,
            job_s=prepared.job_s,
            **vars(shared),
        ),
        batches=_batches({role: journal.all(role, StageDone) for role in roles}),
        peak_bytes={role.value: journal.find(role, Finished).peak_bytes for role in roles},
        notes=(*warnings, *journal.find(owner, InputsMade).notes, *prepared.notes),
        environment=Environment.current(),
        offline=_offline(journal.all(owner, MaterialFetched)),
        elapsed_s=time.perf_counter() - journal.started,
    )


def _offline(fetched: Sequence[MaterialFetched]) -> OfflineCost | None:
    if not fetched:
        return None
    return OfflineCost(
        received_bytes=sum(event.received_bytes for event in fetched),
        fetch_s=sum(event.fetch_s for event in fetched),
        wait_s=sum(event.wait_s for event in fetched),
        held_bytes=max(event.received_bytes for event in fetched),
    )


def _batches(stages: Mapping[Role, Sequence[StageDone]]) -> tuple[BatchCost, ...]:
    images: dict[int, int] = {}
    costs: dict[int, list[StageCost]] = {}
    for index, event in enumerate(stages[Role.DATA_OWNER]):
        busiest_s = max(of_role[index].cost.compute_s for of_role in stages.values())
        images[event.batch] = event.images
        costs.setdefault(event.batch, []).append(replace(event.cost, compute_s=busiest_s))
    return tuple(
        BatchCost(images=images[batch], stages=tuple(of_batch)) for batch, of_batch in costs.items()
    )
