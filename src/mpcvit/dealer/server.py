"""`mpcvit dealer serve`: gives out what jobs ask for, to the parties that authorised them.

    GET  /terms                        whom this is: key, SPU's version
    POST /jobs                         a party authorises a job
    GET  /jobs/DIGEST                  whether both have
    GET  /jobs/DIGEST/INFERENCE/STEP   the material of an inference, from a step on
    GET  /metrics                      totals of the party that asks

Every connection is TLS with a certificate of the parties' authority, and
carries one request. No request holds an operation, a seed or a counter outside
of a job, so that there is nothing to ask for but what both parties agreed on.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mpcvit.codec import encode
from mpcvit.dealer import ADJUSTING, PARTIES, SPU_VERSION, DealerTerms
from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.http import Request, answer, head_of, read_request
from mpcvit.dealer.job_reader import JobReader
from mpcvit.dealer.limits import MOST_REQUEST_BYTES
from mpcvit.dealer.operations import adjust
from mpcvit.dealer.table import JobTable
from mpcvit.errors import UserError
from mpcvit.hosts.door import BusyError, Door, DoorLimits, Guest, Stream
from mpcvit.hosts.log import LogLine, LogWriter
from mpcvit.hosts.peer import Peer

_REQUEST_S = 10.0  # for TLS and the whole request
_LOOK_UP_S = 0.1
_CLOSING_S = 5.0  # for a peer to read the end of an answer and hang up
_PIECE_BYTES = 1 << 20
_STREAM_BYTES = 1 << 16
_SHOWN = 12  # characters of a digest
_SLOWEST = 1 << 18  # bytes a second; a party that reads more slowly asks for the rest again
MAX_CONNECTIONS, MAX_CONNECTIONS_EACH = 64, 16  # of all certificates, of one


@dataclass(kw_only=True)
class DealerLogLine(LogLine):
    """A line of the log: who asked for what, what it took, how it ended. Never a seed."""

    job: str = ""  # the beginning of its digest
    what: str = ""
    sent_bytes: int = 0
    seconds: float = 0.0
    ended: str = "done"


def serve_dealer(
    listener: socket.socket,
    context: Callable[[], ssl.SSLContext],
    table: JobTable,
    fingerprint: str,
    *,
    stop: threading.Event,
    log: Callable[[DealerLogLine], None] = lambda line: None,
    workers: int = 1,
    stall_s: float = 30.0,
    request_s: float = _REQUEST_S,
) -> None:
    """Answer until `stop` is set, in several processes that share the listener and the table."""
    service = _DealerService(context, table, fingerprint, log, stall_s, request_s)
    children = [_fork(service, listener, stop) for _ in range(workers - 1)]
    try:
        asyncio.run(service.run(listener, stop))
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _fork(service: "_DealerService", listener: socket.socket, stop: threading.Event) -> int:
    """Start another process that serves, before any thread is started."""
    parent = os.getpid()
    if child := os.fork():
        return child
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this one
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    asyncio.run(service.run(listener, stop))
    os._exit(0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_UP_S)
    os._exit(1)


class _DealerService:
    """Answers the requests that come in at a door, each in a thread."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        table: JobTable,
        fingerprint: str,
        log: Callable[[DealerLogLine], None],
        stall_s: float,
        request_s: float,
    ) -> None:
        self._context, self._table, self._fingerprint = context, table, fingerprint
        self._log, self._stall_s, self._request_s = log, stall_s, request_s
        self._reader = JobReader()

    async def run(self, listener: socket.socket, stop: threading.Event) -> None:
        self._reader.start()
        self._lines = LogWriter()
        self._threads = concurrent.futures.ThreadPoolExecutor(MAX_CONNECTIONS)
        door = Door(
            listener,
            self._context,
            admit=_why_not,
            read_first=partial(read_request, max_bytes=MOST_REQUEST_BYTES),
            note=lambda address, reason: self._put(DealerLogLine(peer=address, ended=reason)),
            explain=_explain,
            limits=DoorLimits(
                arrival_s=self._request_s,
                connections=MAX_CONNECTIONS,
                connections_per_peer=MAX_CONNECTIONS_EACH,
                stream_bytes=_STREAM_BYTES,
            ),
        )
        accepting = asyncio.ensure_future(door.run(self._receive))
        try:
            while not stop.is_set() and not accepting.done():
                await asyncio.sleep(_LOOK_UP_S)
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
            self._reader.close()
            self._lines.close()

    async def _receive(self, guest: Guest[Request]) -> None:
        """Answer one request, and log it."""
        line = DealerLogLine(peer=guest.address, certificate=guest.peer.name)
        started = time.monotonic()
        reply = _Reply(guest, asyncio.get_running_loop(), self._stall_s)
        work = (guest.first, guest.peer, reply, line)
        try:
            await reply.loop.run_in_executor(self._threads, self._answer, *work)
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(guest.wait_until_closed(), _CLOSING_S)
        finally:
            guest.abort()  # what has not arrived by now never will
            line.seconds = round(time.monotonic() - started, 3)
            self._put(line)

    def _put(self, line: DealerLogLine) -> None:
        self._lines.put(partial(self._log, line))

    # in a thread of its own

    def _answer(self, request: Request, peer: Peer, reply: "_Reply", line: DealerLogLine) -> None:
        try:
            try:
                self._decide(request, peer, reply, line)
            except DealerError as error:
                # who is early asks again, and nothing went wrong
                how = "put off" if isinstance(error, LaterError) else "refused"
                line.ended = f"{how}: {error}"
                reply.send(_refusal(error))
        except (TimeoutError, concurrent.futures.TimeoutError):
            line.ended = "the peer stalled"
        except (OSError, concurrent.futures.CancelledError):
            line.ended = "the peer hung up"
        except Exception as error:  # whatever it is, the next one is answered
            line.ended = f"unexpected {type(error).__name__}"

    def _decide(self, request: Request, peer: Peer, reply: "_Reply", line: DealerLogLine) -> None:
        match request.method, *request.path.split("/")[1:]:
            case "GET", "terms":
                line.what = "terms"
                terms = DealerTerms(spu=SPU_VERSION, key=self._fingerprint)
                reply.send(answer(200, json.dumps(encode(terms)).encode()))
            case "GET", "metrics":
                line.what = "metrics"
                totals = self._table.totals(peer.fingerprint)
                reply.send(answer(200, json.dumps(totals).encode()))
            case "POST", "jobs":
                line.what = "authorise"
                self._table.admit(peer)
                job = self._reader.read(request.body, peer.fingerprint)
                line.job = job.digest[:_SHOWN]
                self._table.authorise(job, peer)
                reply.send(answer(200, job.digest.encode()))
            case "GET", "jobs", digest:
                line.job, line.what = digest[:_SHOWN], "wait"
                self._table.require_open(digest, peer)
                reply.send(answer(200, digest.encode()))
            case "GET", "jobs", digest, inference, step if (
                inference.isdecimal() and step.isdecimal()
            ):
                line.job, line.what = digest[:_SHOWN], f"inference {inference}"
                if peer.role != ADJUSTING:
                    raise DealerError(f"material is for the {ADJUSTING} alone")
                self._give(digest, int(inference), int(step), peer, reply, line)
            case _:
                raise DealerError("there is nothing of this kind to ask for")

    def _give(
        self,
        digest: str,
        inference: int,
        first: int,
        peer: Peer,
        reply: "_Reply",
        line: DealerLogLine,
    ) -> None:
        """Compute and send an inference's material, step by step."""
        started, cpu = time.perf_counter(), time.thread_time()
        turn = self._table.begin(digest, inference, peer)
        (script, _), ledger = turn.job.inference(inference), turn.job.ledger(inference)
        skipped, rest = script.steps[:first], script.steps[first:]
        for step in skipped:
            ledger.enter(step)
        total = sum(sum(step.answer_bytes) for step in rest)
        reply.deadline += total / _SLOWEST
        reply.send(head_of(200, total))
        pending = bytearray()
        for step in rest:
            pending += adjust(step, turn.seeds, ledger.enter(step))
            if len(pending) >= _PIECE_BYTES:
                reply.send(pending)
                line.sent_bytes += len(pending)
                pending = bytearray()
        reply.send(pending)
        line.sent_bytes += len(pending)
        self._table.count(
            turn.parties,
            inferences=0 if script.is_set_up else 1,
            sent_bytes=line.sent_bytes,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.thread_time() - cpu,
        )


class _Reply:
    """Sends an answer from a thread, and gives up on a peer that does not read."""

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop, stall_s: float) -> None:
        self._writer, self.loop, self._stall_s = stream.writer, loop, stall_s
        self.deadline = time.monotonic() + stall_s

    def send(self, piece: bytes | bytearray) -> None:
        """Return when most of a piece is on its way."""
        sending = asyncio.run_coroutine_threadsafe(self._send(piece), self.loop)
        try:
            sending.result(min(self._stall_s, self.deadline - time.monotonic()))
        finally:
            sending.cancel()

    async def _send(self, piece: bytes | bytearray) -> None:
        if self._writer.is_closing():
            raise ConnectionResetError
        self._writer.write(piece)
        await self._writer.drain()


def _why_not(peer: Peer) -> str:
    return "" if peer.role in PARTIES else f"a certificate of '{peer.role}' is not that of a party"


async def _explain(stream: Stream, error: UserError) -> None:
    stream.writer.write(_refusal(error))


def _refusal(error: UserError) -> bytes:
    return answer(503 if isinstance(error, LaterError | BusyError) else 403, str(error).encode())
