"""`mpcvit dealer serve`: gives out what jobs ask for, to the parties that authorised them.

    GET  /terms                        whom this is: key, SPU's version
    POST /jobs                         a party authorises a job
    GET  /jobs/DIGEST                  whether both have
    GET  /jobs/DIGEST/INFERENCE/STEP   the material of an inference, from a step on
    GET  /metrics                      totals

Every connection is TLS with a certificate of the parties' authority, and
carries one request. No request holds an operation, a seed or a counter outside
of a job, so that there is nothing to ask for but what both parties agreed on.
"""

import contextlib
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from mpcvit.dealer import ADJUSTING, PARTIES, SPU_VERSION
from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.jobs import MOST_JOB_BYTES, Job, JobTable
from mpcvit.dealer.messages import Message, name_of, read_message, send, send_head
from mpcvit.dealer.operations import adjust

_HELLO_S = 10.0  # for TLS and the request
_MOST_CONNECTIONS = 64
_LOOK_UP_S = 0.5
_PIECE_BYTES = 1 << 20


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


def serve_dealer(
    listener: socket.socket,
    context: ssl.SSLContext,
    table: JobTable,
    fingerprint: str,
    *,
    stop: threading.Event,
    log: Log = lambda served: None,
    workers: int = 1,
    stall_s: float = 30.0,
) -> None:
    """Answer until `stop` is set, in so many processes that share the listener and the table."""
    desk = _Desk(context, table, fingerprint, log, stall_s)
    children = [_fork(desk, listener, stop) for _ in range(workers - 1)]
    try:
        desk.run(listener, stop)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _fork(desk: "_Desk", listener: socket.socket, stop: threading.Event) -> int:
    """Another process at the same desk; before any thread is started."""
    parent = os.getpid()
    if child := os.fork():
        return child
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this one
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    desk.run(listener, stop)
    os._exit(0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_UP_S)
    os._exit(1)


class _Desk:
    def __init__(
        self,
        context: ssl.SSLContext,
        table: JobTable,
        fingerprint: str,
        log: Log,
        stall_s: float,
    ) -> None:
        self._context, self._table, self._fingerprint = context, table, fingerprint
        self._log, self._stall_s = log, stall_s
        self._log_lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def run(self, listener: socket.socket, stop: threading.Event) -> None:
        listener.settimeout(_LOOK_UP_S)
        while not stop.is_set():
            try:
                connection, peer = listener.accept()
            except (TimeoutError, BlockingIOError):
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._visit, args=(connection, peer), daemon=True).start()

    def _visit(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        """One connection, from the first byte to its line in the log."""
        started = time.perf_counter()
        visit = _Visit(peer="{}:{}".format(*peer))
        try:
            connection.settimeout(_HELLO_S)
            with self._context.wrap_socket(connection, server_side=True) as line:
                visit.certificate = name_of(line)
                self._answer(line, visit)
        except ssl.SSLError as error:
            visit.ended = f"no TLS with an accepted certificate: {error.reason or error}"
        except TimeoutError:
            visit.ended = "the peer stalled"
        except OSError:
            visit.ended = "the peer hung up"
        except Exception as error:  # whatever it is, the next one is answered
            visit.ended = f"unexpected {type(error).__name__}"
        finally:
            connection.close()
            self._places.release()
        with self._log_lock:
            self._log(visit.to_line(time.perf_counter() - started))

    def _answer(self, line: ssl.SSLSocket, visit: "_Visit") -> None:
        try:
            if visit.certificate not in PARTIES:
                raise DealerError(f"a certificate of '{visit.certificate}' is not that of a party")
            with line.makefile("rb") as stream:
                message = read_message(stream, MOST_JOB_BYTES)
            if message is not None:
                self._decide(line, message, visit)
        except DealerError as error:
            visit.ended = f"refused: {error}"
            status = 503 if isinstance(error, LaterError) else 403
            send(line, status, [str(error).encode()])

    def _decide(self, line: ssl.SSLSocket, message: Message, visit: "_Visit") -> None:
        match message.method, *message.path.split("/")[1:]:
            case "GET", "terms":
                visit.what = "terms"
                terms = {"spu": SPU_VERSION, "key": self._fingerprint}
                send(line, 200, [json.dumps(terms).encode()])
            case "GET", "metrics":
                visit.what = "metrics"
                send(line, 200, [json.dumps(self._table.totals()).encode()])
            case "POST", "jobs":
                job = Job.from_bytes(message.body)
                visit.job, visit.what = job.digest, "authorise"
                self._table.authorise(job, visit.certificate)
                send(line, 200, [job.digest.encode()])
            case "GET", "jobs", digest:
                visit.job, visit.what = digest, "wait"
                self._table.require_open(digest)
                send(line, 200, [digest.encode()])
            case "GET", "jobs", digest, inference, step if inference.isdigit() and step.isdigit():
                visit.job, visit.what = digest, f"inference {inference}"
                if visit.certificate != ADJUSTING:
                    raise DealerError(f"material is for the {ADJUSTING} alone")
                self._give(line, digest, int(inference), int(step), visit)
            case _:
                raise DealerError("there is nothing of this kind to ask for")

    def _give(
        self, line: ssl.SSLSocket, digest: str, inference: int, first: int, visit: "_Visit"
    ) -> None:
        """Compute and send an inference's material, step by step."""
        started, cpu = time.perf_counter(), time.thread_time()
        job, seeds = self._table.begin(digest, inference)
        (script, _), ledger = job.inference(inference), job.ledger(inference)
        skipped, rest = script.steps[:first], script.steps[first:]
        for step in skipped:
            ledger.enter(step)
        total = sum(sum(step.answer_bytes) for step in rest)
        line.settimeout(self._stall_s)
        send_head(line, 200, total)
        pending = bytearray()
        for step in rest:
            pending += adjust(step, seeds, ledger.enter(step))
            if len(pending) >= _PIECE_BYTES or step is rest[-1]:
                line.sendall(pending)
                visit.sent_bytes += len(pending)
                pending = bytearray()
        self._table.count(
            inferences=0 if script.is_set_up else 1,
            sent_bytes=visit.sent_bytes,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.thread_time() - cpu,
        )


@dataclass(kw_only=True)
class _Visit:
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
