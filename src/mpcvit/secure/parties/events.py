"""From the events that parties report to the record of a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.provenance import Environment
from mpcvit.artifacts.record import (
    BatchCost,
    OfflineCost,
    RunRecord,
    SetUpCost,
    StageCost,
    stage_from_dict,
)
from mpcvit.codec import encode
from mpcvit.secure.parties.roles import Role

Event = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""Takes (what, done, total)."""


@dataclass
class Journal:
    """Every party's events in the order they came, and progress made of the data owner's."""

    progress: Progress = lambda what, done, total: None
    events: dict[Role, list[Event]] = field(default_factory=lambda: {role: [] for role in Role})
    _known: set[tuple[Role, str]] = field(default_factory=set)
    _stages_done: int = 0

    def add(self, role: Role, event: Event) -> None:
        self.events[role].append(event)
        self._known.add((role, event["event"]))
        if role is not Role.DATA_OWNER:
            return
        if event["event"] == "connected":
            self.progress("connecting", 1, 1)
        elif event["event"] == "progress":
            self.progress(event["what"], event["done"], event["total"])
        elif event["event"] == "stage":
            self._stages_done += 1
            request, prepared = self.find(role, "request"), self.find(role, "prepared")
            batches = -(-request["images"] // request["batch_size"])
            self.progress("running", self._stages_done, batches * prepared["stages"])

    def find(self, role: Role, name: str) -> Event:
        return next(event for event in self.events[role] if event["event"] == name)

    def knows(self, role: Role, name: str) -> bool:
        return (role, name) in self._known

    def where(self, role: Role) -> str:
        """What a party did last, for a sentence about its end."""
        for event in reversed(self.events[role]):
            if event["event"] == "stage":
                return f"after {event['cost']['name']} of batch {event['batch']}"
        return "before the first stage"


def make_record(
    journal: Journal, roles: Sequence[Role], profile: Profile, *, transport: str
) -> RunRecord:
    """The data owner's counts, with the computing time of whoever was busiest."""
    prepared = journal.find(Role.DATA_OWNER, "prepared")
    shared = journal.find(Role.DATA_OWNER, "shared")
    notes = [profile.warning] if profile.warning else []
    return RunRecord(
        transport=transport,
        profile=encode(profile),
        architecture=prepared["architecture"],
        program=prepared["program"],
        form=prepared["form"],
        reveal=journal.find(Role.DATA_OWNER, "request")["reveal"],
        set_up=SetUpCost(
            connect_s=journal.find(Role.DATA_OWNER, "connected")["connect_s"],
            compile_s=prepared["compile_s"],
            weights_s=shared["weights_s"],
            warm_up_s=shared["warm_up_s"],
            warm_up_bytes=shared["warm_up_bytes"],
            warm_up_exchanges=shared["warm_up_exchanges"],
            received_bytes=shared["received_bytes"],
        ),
        batches=_batches({role: journal.events[role] for role in roles}),
        peak_bytes={role.value: journal.find(role, "finished")["peak_bytes"] for role in roles},
        notes=(*notes, *_notes(journal.events[Role.DATA_OWNER])),
        environment=Environment.current(),
        offline=_offline(journal.events[Role.DATA_OWNER]),
    )


def _offline(events: Sequence[Event]) -> OfflineCost | None:
    found = [event for event in events if event["event"] == "material"]
    if not found:
        return None
    return OfflineCost(
        received_bytes=sum(event["received_bytes"] for event in found),
        fetch_s=sum(event["fetch_s"] for event in found),
        wait_s=sum(event["wait_s"] for event in found),
        held_bytes=max(event["received_bytes"] for event in found),
    )


def _notes(events: Sequence[Event]) -> list[str]:
    return [note for event in events for note in event.get("notes", ())]


def _batches(events: Mapping[Role, Sequence[Event]]) -> tuple[BatchCost, ...]:
    stages = {
        role: [event for event in own if event["event"] == "stage"] for role, own in events.items()
    }
    images: dict[int, int] = {}
    costs: dict[int, list[StageCost]] = {}
    for place, event in enumerate(stages[Role.DATA_OWNER]):
        busiest = max(own[place]["cost"]["compute_s"] for own in stages.values())
        cost = replace(stage_from_dict(event["cost"]), compute_s=busiest)
        images[event["batch"]] = event["images"]
        costs.setdefault(event["batch"], []).append(cost)
    return tuple(
        BatchCost(images=images[batch], stages=tuple(of_batch)) for batch, of_batch in costs.items()
    )
