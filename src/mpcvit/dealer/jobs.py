"""Jobs: what both parties ask of a dealer, and the table that holds it to that.

A job names both seeds, where in their streams it begins, and the scripts to
follow, one inference after another. Where masks of kernels are reused, the
first script is a set-up, which draws them all; it counts as inference 0. All
that the dealer ever gives out for a job is a function of the job; so whoever
asks again gets the same again. It gives it out once both parties have
authorised the very same job, in order, and it lets a seed take part in one job
only, for ever.
"""

import base64
import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mpcvit.dealer import PARTIES, SPU_VERSION
from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.keys import CIPHERTEXT_BYTES, PrivateKey
from mpcvit.dealer.ledger import Ledger
from mpcvit.dealer.operations import Seeds
from mpcvit.dealer.script import Script
from mpcvit.errors import UserError

_FORMAT = "mpcvit-dealer-job/1"
MOST_JOB_BYTES = 1 << 22
_MOST_INFERENCES = 1_000_000
_MOST_SCRIPTS = 8
_MOST_COUNT = 1 << 62


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
        if type(self.start) is not int or not 0 <= self.start < _MOST_COUNT:
            raise DealerError("a job begins at a block of the random streams")
        if any(script.is_set_up and (place, times) != (0, 1) for place, (script, times) in plan):
            raise DealerError("a job has at most one set-up, before its inferences")
        trial = Ledger()
        for step in (step for script, _ in self.plan for step in script.steps):
            if step.kernel is not None:
                trial.enter(step)  # refuses kernels that were not used before or of another size

    @property
    def inferences(self) -> int:
        return sum(times for _, times in self.plan)

    def inference(self, index: int) -> tuple[Script, int]:
        """The script of an inference, and the block at which it begins."""
        start, first = self.start, 0
        for script, times in self.plan:
            if index < first + times:
                return script, start + (index - first) * script.blocks
            start, first = start + times * script.blocks, first + times
        raise DealerError(f"the job has {self.inferences} inferences, and no number {index}")

    def ledger(self, index: int) -> Ledger:
        """Where an inference begins, and the kernels' masks that it may draw again."""
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
        document = {
            "format": _FORMAT,
            "spu": self.spu,
            "key": self.key,
            "seeds": [base64.b64encode(seed).decode() for seed in self.seeds],
            "start": self.start,
            "plan": [[written(script), times] for script, times in self.plan],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Job":
        """Decode what a party sent, and believe nothing of it."""
        try:
            document = json.loads(content)
            if document["format"] != _FORMAT:
                raise ValueError
            return cls(
                seeds=tuple(_binary(seed) for seed in document["seeds"]),
                start=document["start"],
                plan=tuple(
                    (Script.from_bytes(_binary(script)), times)
                    for script, times in document["plan"]
                ),
                key=str(document["key"]),
                spu=str(document["spu"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DealerError("the job cannot be understood") from error


def _binary(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """How much a dealer takes on."""

    idle_s: float = 3600.0  # after which a job is forgotten
    open_jobs: int = 256  # with inferences still to come
    jobs_per_minute: int = 60  # of each party


_TABLES = (
    "jobs (digest TEXT PRIMARY KEY, document BLOB NOT NULL, server INTEGER NOT NULL DEFAULT 0, "
    "client INTEGER NOT NULL DEFAULT 0, inferences INTEGER NOT NULL, "
    "begun INTEGER NOT NULL DEFAULT 0, touched REAL NOT NULL)",
    "seeds (fingerprint BLOB PRIMARY KEY, job TEXT NOT NULL)",
    "visits (party TEXT NOT NULL, moment REAL NOT NULL)",
    "totals (name TEXT PRIMARY KEY, value REAL NOT NULL)",
)
_COUNTED = ("jobs", "inferences", "sent_bytes", "seconds", "cpu_seconds")


class JobTable:
    """The jobs of a dealer, in a file that outlives it and that its processes share.

    Jobs are removed when they have been idle; that a seed was used, and in
    which job, is kept for good: thirty-two bytes and a digest.
    """

    def __init__(
        self,
        path: Path,
        key: PrivateKey,
        limits: JobLimits | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._key, self._now = path, key, now
        self.limits = limits or JobLimits()
        try:
            path.touch(mode=0o600)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error
        with self._changing() as table:
            for columns in _TABLES:
                table.execute(f"CREATE TABLE IF NOT EXISTS {columns}")
            for name in _COUNTED:
                table.execute("INSERT OR IGNORE INTO totals VALUES (?, 0)", (name,))

    def authorise(self, job: Job, party: str) -> None:
        """Take a party's word for a job; with the second, its seeds are bound to it for ever."""
        if job.spu != SPU_VERSION:
            raise DealerError(
                f"the dealer serves SPU {SPU_VERSION}, and the parties have {job.spu}"
            )
        if job.key != self._key.public.fingerprint:
            raise DealerError("the seeds are encrypted to another key than this dealer's")
        assert party in PARTIES, "it names a column below"
        now = self._now()
        with self._changing() as table:
            table.execute("DELETE FROM jobs WHERE touched < ?", (now - self.limits.idle_s,))
            table.execute("DELETE FROM visits WHERE moment < ?", (now - 60,))
            self._require_room(table, job.digest, party)
            table.execute("INSERT INTO visits VALUES (?, ?)", (party, now))
            table.execute(
                "INSERT OR IGNORE INTO jobs (digest, document, inferences, touched) "
                "VALUES (?, ?, ?, ?)",
                (job.digest, job.to_bytes(), job.inferences, now),
            )
            table.execute(
                f"UPDATE jobs SET {party} = 1, touched = ? WHERE digest = ?", (now, job.digest)
            )
            with suppress(LaterError):
                self._seeds(table, self._find(table, job.digest)[0])

    def require_open(self, digest: str) -> None:
        """Return if both parties have authorised a job, and so its seeds are bound to it."""
        with self._changing() as table:
            self._find(table, digest)

    def begin(self, digest: str, inference: int) -> tuple[Job, Seeds]:
        """A job and its seeds, for an inference whose turn has come or had come before."""
        with self._changing() as table:
            job, begun = self._find(table, digest)
            job.inference(inference)  # must be one of the job's
            if inference > begun:
                raise DealerError(f"inference {inference} is out of turn: {begun} comes next")
            seeds = self._seeds(table, job)
            table.execute(
                "UPDATE jobs SET begun = max(begun, ?), touched = ? WHERE digest = ?",
                (inference + 1, self._now(), digest),
            )
        return job, seeds

    def count(self, **amounts: float) -> None:
        """Add to what was served since the table was made."""
        with self._changing() as table:
            for name, amount in amounts.items():
                table.execute("UPDATE totals SET value = value + ? WHERE name = ?", (amount, name))

    def totals(self) -> dict[str, float]:
        """Jobs, inferences, bytes, and seconds of computing and sending."""
        with self._changing() as table:
            return dict(table.execute("SELECT name, value FROM totals").fetchall())

    def _find(self, table: sqlite3.Connection, digest: str) -> tuple[Job, int]:
        """A job that both parties authorised, and the inference whose turn it is."""
        row = table.execute(
            "SELECT document, server, client, begun FROM jobs WHERE digest = ? AND touched >= ?",
            (digest, self._now() - self.limits.idle_s),
        ).fetchone()
        if row is None:
            raise DealerError("there is no such job, or it has expired")
        document, *authorised, begun = row
        if not all(authorised):
            missing = PARTIES[authorised.index(0)]
            raise LaterError(f"the {missing} has not authorised the job")
        return Job.from_bytes(document), begun

    def _seeds(self, table: sqlite3.Connection, job: Job) -> Seeds:
        """A job's seeds, once no other job has them."""
        seeds = tuple(self._key.decrypt(seed) for seed in job.seeds)
        is_new = self._bind(table, seeds, job.digest)
        table.execute("UPDATE totals SET value = value + ? WHERE name = 'jobs'", (is_new,))
        return seeds

    def _require_room(self, table: sqlite3.Connection, digest: str, party: str) -> None:
        recent = table.execute("SELECT count(*) FROM visits WHERE party = ?", (party,))
        if recent.fetchone()[0] >= self.limits.jobs_per_minute:
            raise LaterError(f"more than {self.limits.jobs_per_minute} jobs in a minute")
        others = table.execute(
            "SELECT count(*) FROM jobs WHERE digest != ? AND begun < inferences", (digest,)
        )
        if others.fetchone()[0] >= self.limits.open_jobs:
            raise LaterError(f"{self.limits.open_jobs} jobs are open already")

    def _bind(self, table: sqlite3.Connection, seeds: Seeds, digest: str) -> bool:
        """A seed belongs to the first job that used it; tells whether this is its first use."""
        added = 0
        for seed in seeds:
            fingerprint = hashlib.sha256(b"mpcvit seed" + seed).digest()
            added += table.execute(
                "INSERT OR IGNORE INTO seeds VALUES (?, ?)", (fingerprint, digest)
            ).rowcount
            owner = table.execute("SELECT job FROM seeds WHERE fingerprint = ?", (fingerprint,))
            if owner.fetchone() != (digest,):
                raise DealerError("a seed was used in another job")
        if len(set(seeds)) != len(seeds):
            raise DealerError("the parties' seeds are the same")
        return added > 0

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing; one at a time, whichever process asks."""
        try:
            connection = sqlite3.connect(self._path, timeout=10.0, isolation_level=None)
            with closing(connection) as table:
                table.execute("PRAGMA secure_delete = ON")
                table.execute("BEGIN IMMEDIATE")
                yield table
                table.execute("COMMIT")
        except sqlite3.Error as error:
            raise DealerError(f"the dealer cannot keep its records: {error}") from error
