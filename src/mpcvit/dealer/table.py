"""The table of jobs: which party authorised what, and which seeds are used.

Nothing that one party does alone keeps another from being served. A job that
waits for its second party is forgotten after a minute, and counts against the
certificate that sent it.
"""

import hashlib
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpcvit.dealer import PARTIES, SPU_VERSION
from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.jobs import Job, JobOutline
from mpcvit.dealer.keys import PrivateKey
from mpcvit.dealer.operations import Seeds
from mpcvit.errors import UserError
from mpcvit.hosts.peer import Peer


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """The limits of what a dealer takes on."""

    idle_s: float = 3600.0  # after which a job is forgotten
    waiting_s: float = 60.0  # after which a job that one party authorised is forgotten
    waiting_jobs: int = 16  # of each certificate, authorised by that party alone
    open_jobs: int = 256  # of each server's certificate, with inferences still to come
    client_jobs: int = 64  # the same of each client's, so that no client uses up a server's
    jobs_per_minute: int = 60  # of each certificate

    def open_jobs_of(self, role: str) -> int:
        return {"server": self.open_jobs, "client": min(self.client_jobs, self.open_jobs)}[role]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """An inference that may be served."""

    job: Job
    seeds: Seeds
    parties: tuple[str, ...]  # fingerprints of the certificates that authorised the job


_LAYOUT = 1
_TABLES = (
    "jobs (digest TEXT PRIMARY KEY, document BLOB NOT NULL, server TEXT NOT NULL DEFAULT '', "
    "client TEXT NOT NULL DEFAULT '', inferences INTEGER NOT NULL, "
    "begun INTEGER NOT NULL DEFAULT 0, touched REAL NOT NULL)",
    "seeds (fingerprint BLOB PRIMARY KEY, job TEXT NOT NULL)",
    "visits (party TEXT NOT NULL, moment REAL NOT NULL)",
    "totals (server TEXT NOT NULL, client TEXT NOT NULL, name TEXT NOT NULL, "
    "value REAL NOT NULL, PRIMARY KEY (server, client, name))",
)
_COUNTED = ("jobs", "inferences", "sent_bytes", "seconds", "cpu_seconds")
_KEPT_IN_MEMORY = 4  # jobs, so that each fetch need not decode its job again


class JobTable:
    """The jobs of a dealer, in a file that outlives it and that its processes share.

    Jobs are removed when they have been idle. That a seed was used, and in
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
        self._decoded: OrderedDict[str, Job] = OrderedDict()
        self._decoding = threading.Lock()
        try:
            path.touch(mode=0o600)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error
        with self._changing() as table:
            _lay_out(table)

    def admit(self, peer: Peer) -> None:
        """Count a job that a party sends. Nothing of it has been read yet."""
        now = self._now()
        with self._changing() as table:
            table.execute("DELETE FROM visits WHERE moment < ?", (now - 60,))
            recent = table.execute(
                "SELECT count(*) FROM visits WHERE party = ?", (peer.fingerprint,)
            )
            if recent.fetchone()[0] >= self.limits.jobs_per_minute:
                raise LaterError(f"more than {self.limits.jobs_per_minute} jobs in a minute")
            table.execute("INSERT INTO visits VALUES (?, ?)", (peer.fingerprint, now))

    def authorise(self, job: JobOutline, peer: Peer) -> None:
        """Take a party's word for a job. With the second, its seeds are bound to it for ever."""
        if job.spu != SPU_VERSION:
            raise DealerError(
                f"the dealer serves SPU {SPU_VERSION}, and the parties have {job.spu[:20]}"
            )
        if job.key != self._key.public.fingerprint:
            raise DealerError("the seeds are encrypted to another key than this dealer's")
        assert peer.role in PARTIES, "it names a column below"
        now = self._now()
        with self._changing() as table:
            self._forget_old(table, now)
            words = self._words(table, job.digest)
            if words[peer.role] not in ("", peer.fingerprint):
                raise DealerError(f"another {peer.role} has authorised the job")
            words[peer.role] = peer.fingerprint
            self._require_room(table, job.digest, words)
            table.execute(
                "INSERT OR IGNORE INTO jobs (digest, document, inferences, touched) "
                "VALUES (?, ?, ?, ?)",
                (job.digest, job.document, job.inferences, now),
            )
            table.execute(
                f"UPDATE jobs SET {peer.role} = ? WHERE digest = ?", (peer.fingerprint, job.digest)
            )
            if all(words.values()):  # a party alone cannot prolong a job by sending it again
                table.execute("UPDATE jobs SET touched = ? WHERE digest = ?", (now, job.digest))
                self._bind(table, self._decrypt(job.seeds), job.digest)

    def require_open(self, digest: str, peer: Peer) -> None:
        """Return if both parties have authorised a job, and so its seeds are bound to it."""
        with self._reading() as table:
            self._find(table, digest, peer)

    def begin(self, digest: str, inference: int, peer: Peer) -> Turn:
        """Return a job and its seeds, for an inference whose turn has come or had come before."""
        with self._reading() as table:
            document, *_ = self._find(table, digest, peer)
        job = self._decode(digest, document)
        job.inference(inference)  # must be one of the job's
        seeds = self._decrypt(job.seeds)
        with self._changing() as table:
            _, begun, parties = self._find(table, digest, peer)
            if inference > begun:
                raise DealerError(f"inference {inference} is out of turn: {begun} comes next")
            self._bind(table, seeds, digest)
            table.execute(
                "UPDATE jobs SET begun = max(begun, ?), touched = ? WHERE digest = ?",
                (inference + 1, self._now(), digest),
            )
        return Turn(job=job, seeds=seeds, parties=parties)

    def count(self, parties: tuple[str, ...], **amounts: float) -> None:
        """Add to what two parties were served since the table was made."""
        with self._changing() as table:
            for name, amount in amounts.items():
                _add(table, parties, name, amount)

    def totals(self, party: str | None = None) -> dict[str, float]:
        """Return jobs, inferences, bytes and seconds: of one certificate, or of all."""
        with self._reading() as table:
            found = table.execute(
                "SELECT name, sum(value) FROM totals WHERE ?1 IS NULL OR ?1 IN (server, client) "
                "GROUP BY name",
                (party,),
            )
            return {**dict.fromkeys(_COUNTED, 0.0), **dict(found.fetchall())}

    def _words(self, table: sqlite3.Connection, digest: str) -> dict[str, str]:
        """Return the certificates that authorised a job, by role; an empty text for none."""
        found = table.execute("SELECT server, client FROM jobs WHERE digest = ?", (digest,))
        return dict(zip(PARTIES, found.fetchone() or ("", ""), strict=True))

    def _find(
        self, table: sqlite3.Connection, digest: str, peer: Peer
    ) -> tuple[bytes, int, tuple[str, ...]]:
        """Return a job that both parties authorised, whose turn it is, and both parties."""
        row = table.execute(
            "SELECT document, begun, touched, server, client FROM jobs WHERE digest = ?", (digest,)
        ).fetchone()
        document, begun, touched, *parties = row or (b"", 0, 0.0, "", "")
        limit_s = self.limits.idle_s if all(parties) else self.limits.waiting_s
        if row is None or touched < self._now() - limit_s:
            raise DealerError("there is no such job, or it has expired")
        if not all(parties):
            missing = PARTIES[parties.index("")]
            raise LaterError(f"the {missing} has not authorised the job")
        if peer.fingerprint not in parties:
            raise DealerError("this certificate has no part in the job")
        return document, begun, tuple(parties)

    def _decode(self, digest: str, document: bytes) -> Job:
        """Return a job of the records. It was within the limits when it was authorised."""
        with self._decoding:
            job = self._decoded.pop(digest, None) or Job.from_bytes(document)
            self._decoded[digest] = job
            while len(self._decoded) > _KEPT_IN_MEMORY:
                self._decoded.popitem(last=False)
        return job

    def _decrypt(self, sealed: tuple[bytes, ...]) -> Seeds:
        return tuple(self._key.decrypt(seed) for seed in sealed)

    def _forget_old(self, table: sqlite3.Connection, now: float) -> None:
        table.execute("DELETE FROM jobs WHERE touched < ?", (now - self.limits.idle_s,))
        table.execute(
            "DELETE FROM jobs WHERE '' IN (server, client) AND touched < ?",
            (now - self.limits.waiting_s,),
        )

    def _require_room(
        self, table: sqlite3.Connection, digest: str, words: Mapping[str, str]
    ) -> None:
        """Refuse what would be too much for one certificate, whatever others do."""
        opens = all(words.values())
        state = "begun < inferences AND '' NOT IN (server, client)"
        for role, fingerprint in words.items():
            most = self.limits.open_jobs_of(role) if opens else self.limits.waiting_jobs
            found = table.execute(
                f"SELECT count(*) FROM jobs WHERE {role} = ? AND digest != ? AND "
                + (state if opens else "'' IN (server, client)"),
                (fingerprint, digest),
            )
            if fingerprint and found.fetchone()[0] >= most:
                kind = "open" if opens else "waiting"
                raise LaterError(f"{most} jobs of this {role}'s certificate are {kind} already")

    def _bind(self, table: sqlite3.Connection, seeds: Seeds, digest: str) -> None:
        """Refuse seeds that another job has, and give these to this job for ever."""
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
        if added:
            _add(table, tuple(self._words(table, digest).values()), "jobs", 1)

    def _changing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Change all or nothing. One process at a time does so."""
        return self._transaction("BEGIN IMMEDIATE")

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._transaction("BEGIN")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self._path, timeout=10.0, isolation_level=None)
            with closing(connection) as table:
                table.execute("PRAGMA secure_delete = ON")
                table.execute(begin)
                yield table
                table.execute("COMMIT")
        except sqlite3.Error as error:
            raise DealerError(f"the dealer cannot keep its records: {error}") from error


def _lay_out(table: sqlite3.Connection) -> None:
    """Make the tables, or bring those of an older layout to this one. Used seeds stay used."""
    (layout,) = table.execute("PRAGMA user_version").fetchone()
    if layout > _LAYOUT:
        raise UserError("the records were written by a newer mpcvit; update this one")
    former: list[tuple[str, float]] = []
    if layout < _LAYOUT:
        known = table.execute("SELECT 1 FROM sqlite_master WHERE name = 'totals'").fetchone()
        former = table.execute("SELECT name, value FROM totals").fetchall() if known else []
        for name in ("jobs", "visits", "totals"):
            table.execute(f"DROP TABLE IF EXISTS {name}")
    for columns in _TABLES:
        table.execute(f"CREATE TABLE IF NOT EXISTS {columns}")
    for name, value in former:
        _add(table, ("", ""), name, value)
    table.execute(f"PRAGMA user_version = {_LAYOUT}")


def _add(table: sqlite3.Connection, parties: tuple[str, ...], name: str, amount: float) -> None:
    assert name in _COUNTED
    table.execute(
        "INSERT INTO totals VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET value = value + excluded.value",
        (*parties, name, amount),
    )
