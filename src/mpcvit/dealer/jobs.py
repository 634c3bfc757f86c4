"""Jobs: what both parties ask of a dealer. `table.py` holds it to that.

A job names both seeds, where in their streams it begins, and the scripts to
follow, one inference after another. Where masks of kernels are reused, the
first script is a set-up, which draws them all; it counts as inference 0. All
that the dealer ever gives out for a job is a function of the job, so a party that
asks again gets the same again. It gives it out once both parties have
authorised the very same job, in order, and it lets a seed take part in one job
only, for ever.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from mpcvit.codec import decode, encode, register, require
from mpcvit.dealer import PARTIES, SPU_VERSION
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.keys import CIPHERTEXT_BYTES
from mpcvit.dealer.ledger import Ledger
from mpcvit.dealer.limits import (
    MOST_ANSWER_BYTES,
    MOST_DRAWN_BYTES,
    MOST_FULL_INFERENCES,
    MOST_INFLATED_BYTES,
    MOST_MULTIPLY_ADDS,
    MOST_STEPS,
)
from mpcvit.dealer.script import Script, count_steps, inflate
from mpcvit.errors import UserError

_MOST_INFERENCES = 1_000_000
_MOST_SCRIPTS = 8
_MOST_COUNT = 1 << 62


@register("mpcvit-dealer-job/1", "job")
@dataclass(frozen=True, kw_only=True)
class _JobDocument:
    """A job as it is sent: seeds and scripts in base64."""

    spu: str
    key: str
    seeds: tuple[str, ...]
    start: int
    plan: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        require(len(self.plan) <= _MOST_SCRIPTS, "plan", "has too many scripts")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One session of two parties."""

    seeds: tuple[bytes, ...]  # encrypted, by party
    start: int  # the block at which the first inference begins
    plan: tuple[tuple[Script, int], ...]  # a set-up or none; scripts, how often each in a row
    key: str  # fingerprint of the dealer's
    spu: str = SPU_VERSION

    def __post_init__(self) -> None:
        plan = list(enumerate(self.plan))
        if len(self.seeds) != len(PARTIES) or len(set(self.seeds)) != len(PARTIES):
            raise DealerError("a job has two different seeds")
        if any(len(seed) != CIPHERTEXT_BYTES for seed in self.seeds):
            raise DealerError("a seed is not encrypted to a dealer's key")
        if not all(script.steps for script, _ in self.plan):
            raise DealerError("a script of no steps asks for nothing")
        if any(type(times) is not int or times < 1 for _, times in self.plan):
            raise DealerError("a job's inferences are counted in positive numbers")
        if not 0 < self.inferences <= _MOST_INFERENCES or len(self.plan) > _MOST_SCRIPTS:
            raise DealerError(f"a job of {self.inferences} inferences cannot be")
        self._require_moderate()
        if type(self.start) is not int or not 0 <= self.start < _MOST_COUNT:
            raise DealerError("a job begins at a block of the random streams")
        if any(script.is_set_up and (place, times) != (0, 1) for place, (script, times) in plan):
            raise DealerError("a job has at most one set-up, before its inferences")
        trial = Ledger()
        for step in (step for script, _ in self.plan for step in script.steps):
            if step.kernel is not None:
                trial.enter(step)  # refuses kernels that were not used before or of another size

    def _require_moderate(self) -> None:
        if (steps := sum(len(script.steps) for script, _ in self.plan)) > MOST_STEPS:
            raise DealerError(
                f"a job's scripts have {steps:,} steps; a dealer allows {MOST_STEPS:,}"
            )
        for what, most in (
            ("drawn_bytes", MOST_DRAWN_BYTES),
            ("answer_bytes", MOST_ANSWER_BYTES),
            ("multiply_adds", MOST_MULTIPLY_ADDS),
        ):
            amount = sum(getattr(script, what) * times for script, times in self.plan)
            if amount > most * MOST_FULL_INFERENCES:
                raise DealerError(
                    f"a job takes {amount:,} {what.replace('_', ' ')}; a dealer allows "
                    f"{most * MOST_FULL_INFERENCES:,}; run fewer images at a time"
                )

    @property
    def inferences(self) -> int:
        return sum(times for _, times in self.plan)

    def inference(self, index: int) -> tuple[Script, int]:
        """Return the script of an inference, and the block at which it begins."""
        start, first = self.start, 0
        for script, times in self.plan:
            if index < first + times:
                return script, start + (index - first) * script.blocks
            start, first = start + times * script.blocks, first + times
        raise DealerError(f"the job has {self.inferences} inferences, and no number {index}")

    def ledger(self, index: int) -> Ledger:
        """Return where an inference begins, and the kernels' masks that it may draw again."""
        ledger, (set_up, _) = Ledger(self.start), self.plan[0]
        if index > 0 and set_up.is_set_up:
            for step in set_up.steps:
                ledger.enter(step)
        _, ledger.next = self.inference(index)
        return ledger

    @cached_property
    def digest(self) -> str:
        """The same on every host: of scripts' own digests, as zlib's output may differ."""
        return hashlib.sha256(self._document(lambda script: script.digest)).hexdigest()

    def to_bytes(self) -> bytes:
        return self._document(lambda script: base64.b64encode(script.to_bytes()).decode())

    def _document(self, written: Callable[[Script], str]) -> bytes:
        document = _JobDocument(
            spu=self.spu,
            key=self.key,
            seeds=tuple(base64.b64encode(seed).decode() for seed in self.seeds),
            start=self.start,
            plan=tuple((written(script), times) for script, times in self.plan),
        )
        return json.dumps(encode(document), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Job":
        """Decode what a party sent, and believe nothing of it."""
        try:
            sent = decode(_JobDocument, json.loads(content), "job")
            scripts = _read_scripts(_binary(script) for script, _ in sent.plan)
            return cls(
                seeds=tuple(_binary(seed) for seed in sent.seeds),
                start=sent.start,
                plan=tuple(zip(scripts, (times for _, times in sent.plan), strict=True)),
                key=sent.key,
                spu=sent.spu,
            )
        except DealerError:
            raise
        except (UserError, ValueError, TypeError, RecursionError) as error:
            raise DealerError("the job cannot be understood") from error


@dataclass(frozen=True, kw_only=True)
class JobOutline:
    """A job as it was sent, and what a dealer must know of it before it is open."""

    document: bytes
    digest: str
    inferences: int
    seeds: tuple[bytes, ...]
    key: str
    spu: str


def _read_scripts(contents: Iterable[bytes]) -> list[Script]:
    """Decode a job's scripts, after all of them together are known to be short enough."""
    texts: list[bytes] = []
    for content in contents:
        texts.append(inflate(content, MOST_INFLATED_BYTES - sum(map(len, texts))))
        if sum(map(count_steps, texts)) > MOST_STEPS:
            raise DealerError(f"a job's scripts have more than {MOST_STEPS:,} steps")
    return [Script.from_text(text) for text in texts]


def _binary(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
