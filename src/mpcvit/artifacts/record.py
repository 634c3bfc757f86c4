"""RunRecord: what a private run cost, stage by stage and operation by operation.

Bytes and exchanges are counted by SPU at the party that holds the images. An
exchange is one message each way at once, and costs half a round trip. Under a
protocol that does not count rounds, `modelled_s` is no estimate of seconds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mpcvit.artifacts.profile import NetworkLink, Profile
from mpcvit.artifacts.provenance import Environment
from mpcvit.codec import register

FORMAT = "mpcvit-record/1"


class Reveal(str, Enum):
    """A choice of the model owner: what the data owner gets of an image's logits.

    class:   the likeliest class
    top5:    the set of the five likeliest classes, without their order
    rounded: the likeliest class, and each logit rounded to a whole number
    logits:  each logit as it was computed
    """

    CLASS = "class"
    TOP5 = "top5"
    ROUNDED = "rounded"
    LOGITS = "logits"


@dataclass(frozen=True, kw_only=True)
class OperationCost:
    """The cost of all executions of one kind of operation within a stage."""

    name: str
    executions: int
    sent_bytes: int
    exchanges: int
    seconds: float  # by the wall clock, waiting for the peer included


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """The cost of one stage: input, embedding, a block, the head, the answer or output."""

    name: str
    sent_bytes: int
    received_bytes: int
    exchanges: int
    seconds: float  # by the wall clock
    # CPU seconds of the busiest party that was seen (between hosts, the own one), and no more
    # than the wall clock's
    compute_s: float
    operations: tuple[OperationCost, ...] = ()

    def modelled_s(self, network: NetworkLink) -> float:
        one_way_bytes = max(self.sent_bytes, self.received_bytes)
        return self.compute_s + network.seconds(exchanges=self.exchanges, sent_bytes=one_way_bytes)


@dataclass(frozen=True, kw_only=True)
class BatchCost:
    """The stages of one batch of images."""

    images: int
    stages: tuple[StageCost, ...]

    @property
    def total(self) -> StageCost:
        """All stages as one."""
        return _sum_stages(list(self.stages), "batch")


@dataclass(frozen=True, kw_only=True)
class SetUpCost:
    """The cost of everything before the first image, however many follow."""

    connect_s: float
    compile_s: float
    weights_s: float  # sharing the weights
    warm_up_s: float  # what the protocol itself sets up on its first use
    received_bytes: int  # for the shares of the weights
    warm_up_bytes: int = 0  # sent in first uses of kernels whose masks are reused
    warm_up_exchanges: int = 0
    start_s: float = 0.0  # starting processes, loading, and the server's queue
    job_s: float = 0.0  # agreeing with the dealer on what it will deal

    @property
    def seconds(self) -> float:
        measured_s = self.connect_s + self.compile_s + self.weights_s + self.warm_up_s
        return self.start_s + measured_s + self.job_s


@dataclass(frozen=True, kw_only=True)
class OfflineCost:
    """The cost of a dealer's material, before and between inferences."""

    received_bytes: int  # of all inferences
    fetch_s: float  # from asking for it to having it, which may overlap an inference
    wait_s: float  # in which nothing else happened
    held_bytes: int  # memory of the largest inference's


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """The wall-clock seconds of a run at the data owner's; all parts add up to `total_s`."""

    set_up: dict[str, float]  # by what took them
    images: tuple[tuple[int, float], ...]  # how many at a time, and their seconds

    @property
    def set_up_s(self) -> float:
        return sum(self.set_up.values())

    @property
    def images_s(self) -> float:
        return sum(seconds for _, seconds in self.images)

    @property
    def per_image_s(self) -> float:
        return self.images_s / sum(count for count, _ in self.images)

    @property
    def total_s(self) -> float:
        return self.set_up_s + self.images_s


@register(FORMAT, "record of a private run")
@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A private run, and all that is needed to judge its numbers."""

    transport: str  # "processes" of one machine, "hosts", or "simulator": threads of one process
    profile: Profile
    architecture: str  # its digest
    program: str  # digest of the compiled stages
    set_up: SetUpCost
    batches: tuple[BatchCost, ...]
    peak_bytes: dict[str, int]  # memory of each party's process, by role
    notes: tuple[str, ...]  # who had to be trusted, and what was changed to fit fixed point
    environment: Environment
    form: str = "plain"  # the network as it was trained, or "lowered"
    reveal: Reveal = Reveal.LOGITS  # what the data owner was given
    offline: OfflineCost | None = None  # where there is a dealer
    elapsed_s: float | None = None  # from the call to its answer; older records lack it

    @property
    def images(self) -> int:
        return sum(batch.images for batch in self.batches)

    @property
    def was_timed(self) -> bool:
        """Whether its seconds are those of parties apart, and not of threads."""
        return self.transport != "simulator"

    @property
    def exchanges(self) -> int:
        return self._total(lambda stage: stage.exchanges)

    @property
    def sent_bytes(self) -> int:
        return self._total(lambda stage: stage.sent_bytes)

    @property
    def received_bytes(self) -> int:
        return self._total(lambda stage: stage.received_bytes)

    @property
    def measured_s(self) -> float:
        """Wall-clock seconds of all batches, without the set-up."""
        return self._total(lambda stage: stage.seconds)

    @property
    def compute_s(self) -> float:
        return self._total(lambda stage: stage.compute_s)

    @property
    def times(self) -> RunTimes:
        """Where the time of the whole run went."""
        set_up, waited_s = self.set_up, 0.0 if self.offline is None else self.offline.wait_s
        known = {
            "start": set_up.start_s,
            "connect": set_up.connect_s,
            "compile": set_up.compile_s,
            "weights": set_up.weights_s,
            "randomness": set_up.job_s + set_up.warm_up_s + waited_s,
        }
        rest_s = 0.0
        if self.elapsed_s is not None:
            rest_s = self.elapsed_s - sum(known.values()) - self.measured_s
        return RunTimes(
            set_up={**known, "other parties": max(rest_s, 0.0)},
            images=tuple((batch.images, batch.total.seconds) for batch in self.batches),
        )

    def modelled_s(self, network: NetworkLink) -> float:
        """Return the seconds of all batches over a network, without the set-up.

        exchanges * round_trip / 2 + bytes / bandwidth + compute
        """
        return self._total(lambda stage: stage.modelled_s(network))

    @property
    def stages(self) -> tuple[StageCost, ...]:
        """Every stage once, summed over the batches."""
        by_name: dict[str, list[StageCost]] = {}
        for batch in self.batches:
            for stage in batch.stages:
                by_name.setdefault(stage.name, []).append(stage)
        return tuple(_sum_stages(stages, name) for name, stages in by_name.items())

    def _total(self, of: Callable[[StageCost], Any]) -> Any:
        return sum(of(stage) for batch in self.batches for stage in batch.stages)


def _sum_stages(stages: list[StageCost], name: str) -> StageCost:
    by_name: dict[str, list[OperationCost]] = {}
    for stage in stages:
        for operation in stage.operations:
            by_name.setdefault(operation.name, []).append(operation)
    return StageCost(
        name=name,
        **_sums(stages, ("sent_bytes", "received_bytes", "exchanges", "seconds", "compute_s")),
        operations=tuple(
            OperationCost(
                name=name,
                **_sums(operations, ("executions", "sent_bytes", "exchanges", "seconds")),
            )
            for name, operations in by_name.items()
        ),
    )


def _sums(items: Iterable[Any], names: tuple[str, ...]) -> dict[str, Any]:
    items = list(items)
    return {name: sum(getattr(item, name) for item in items) for name in names}
