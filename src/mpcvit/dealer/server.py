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

import contextlib
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable

from mpcvit.dealer import ADJUSTING, PARTIES, SPU_VERSION
from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.http import Message, read_message, send, send_head
from mpcvit.dealer.job_reader import JobReader
from mpcvit.dealer.limits import MOST_REQUEST_BYTES
from mpcvit.dealer.log import Log, LogWriter, Visit
from mpcvit.dealer.operations import adjust
from mpcvit.dealer.room import Room
from mpcvit.dealer.table import JobTable
from mpcvit.hosts.peer import Peer, peer_of

_REQUEST_S = 10.0  # for TLS and the whole request
_LOOK_UP_S = 0.5
_PIECE_BYTES = 1 << 20
_SLOWEST = 1 << 18  # bytes a second; who reads more slowly asks for the rest again


def serve_dealer(
    listener: socket.socket,
    context: Callable[[], ssl.SSLContext],
    table: JobTable,
    fingerprint: str,
    *,
    stop: threading.Event,
    log: Log = lambda served: None,
    workers: int = 1,
    stall_s: float = 30.0,
    request_s: float = _REQUEST_S,
) -> None:
    """Answer until `stop` is set, in several processes that share the listener and the table."""
    service = _DealerService(context, table, fingerprint, log, stall_s, request_s)
    children = [_fork(service, listener, stop) for _ in range(workers - 1)]
    try:
        service.run(listener, stop)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _fork(service: "_DealerService", listener: socket.socket, stop: threading.Event) -> int:
    """Another process at the same service; before any thread is started."""
    parent = os.getpid()
    if child := os.fork():
        return child
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this one
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    service.run(listener, stop)
    os._exit(0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_UP_S)
    os._exit(1)


class _DealerService:
    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        table: JobTable,
        fingerprint: str,
        log: Log,
        stall_s: float,
        request_s: float,
    ) -> None:
        self._context, self._table, self._fingerprint = context, table, fingerprint
        self._log, self._stall_s = log, stall_s
        self._room, self._reader = Room(request_s), JobReader()

    def run(self, listener: socket.socket, stop: threading.Event) -> None:
        listener.settimeout(_LOOK_UP_S)
        self._reader.start()
        lines = LogWriter(self._log)
        try:
            while not stop.is_set():
                self._room.sweep()
                try:
                    connection, address = listener.accept()
                except (TimeoutError, BlockingIOError):
                    continue
                except OSError:  # no file is left, for instance: wait until there is one
                    self._room.drop_oldest()
                    stop.wait(_LOOK_UP_S)
                    continue
                self._welcome(connection, "{}:{}".format(*address), lines)
        finally:
            self._reader.close()
            lines.close()

    def _welcome(self, connection: socket.socket, address: str, lines: LogWriter) -> None:
        try:
            line = self._context().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        except (OSError, ValueError):  # it is gone already
            connection.close()
            return
        self._room.enter(line)
        visit = Visit(peer=address)
        try:
            threading.Thread(target=self._visit, args=(line, visit, lines), daemon=True).start()
        except RuntimeError:  # no thread is left
            self._room.leave(line)
            line.close()

    def _visit(self, line: ssl.SSLSocket, visit: Visit, lines: LogWriter) -> None:
        """One connection, from the first byte to its line in the log."""
        started = time.perf_counter()
        try:
            line.settimeout(self._stall_s)
            line.do_handshake()
            peer = peer_of(line)
            visit.certificate = peer.name
            self._answer(line, peer, visit)
        except ssl.SSLError as error:
            visit.ended = f"no TLS with an accepted certificate: {error.reason or error}"
        except TimeoutError:
            visit.ended = "the peer stalled"
        except OSError:
            visit.ended = "the peer hung up"
        except Exception as error:  # whatever it is, the next one is answered
            visit.ended = f"unexpected {type(error).__name__}"
        finally:
            if self._room.leave(line):
                visit.ended = "hung up on: it took too long, or too many others asked"
            line.close()
            lines.put(visit.to_line(time.perf_counter() - started))

    def _answer(self, line: ssl.SSLSocket, peer: Peer, visit: Visit) -> None:
        try:
            if peer.role not in PARTIES:
                raise DealerError(f"a certificate of '{peer.role}' is not that of a party")
            with line.makefile("rb") as stream:
                message = read_message(stream, MOST_REQUEST_BYTES)
            if message is not None:
                with self._room.answering(line, peer.fingerprint, self._stall_s):
                    self._decide(line, message, peer, visit)
        except DealerError as error:
            visit.ended = f"refused: {error}"
            status = 503 if isinstance(error, LaterError) else 403
            send(line, status, [str(error).encode()])

    def _decide(self, line: ssl.SSLSocket, message: Message, peer: Peer, visit: Visit) -> None:
        match message.method, *message.path.split("/")[1:]:
            case "GET", "terms":
                visit.what = "terms"
                terms = {"spu": SPU_VERSION, "key": self._fingerprint}
                send(line, 200, [json.dumps(terms).encode()])
            case "GET", "metrics":
                visit.what = "metrics"
                send(line, 200, [json.dumps(self._table.totals(peer.fingerprint)).encode()])
            case "POST", "jobs":
                visit.what = "authorise"
                self._table.admit(peer)
                job = self._reader.read(message.body)
                visit.job = job.digest
                self._table.authorise(job, peer)
                send(line, 200, [job.digest.encode()])
            case "GET", "jobs", digest:
                visit.job, visit.what = digest, "wait"
                self._table.require_open(digest, peer)
                send(line, 200, [digest.encode()])
            case "GET", "jobs", digest, inference, step if (
                inference.isdecimal() and step.isdecimal()
            ):
                visit.job, visit.what = digest, f"inference {inference}"
                if peer.role != ADJUSTING:
                    raise DealerError(f"material is for the {ADJUSTING} alone")
                self._give(line, digest, int(inference), int(step), peer, visit)
            case _:
                raise DealerError("there is nothing of this kind to ask for")

    def _give(
        self,
        line: ssl.SSLSocket,
        digest: str,
        inference: int,
        first: int,
        peer: Peer,
        visit: Visit,
    ) -> None:
        """Compute and send an inference's material, step by step."""
        started, cpu = time.perf_counter(), time.thread_time()
        turn = self._table.begin(digest, inference, peer)
        (script, _), ledger = turn.job.inference(inference), turn.job.ledger(inference)
        skipped, rest = script.steps[:first], script.steps[first:]
        for step in skipped:
            ledger.enter(step)
        total = sum(sum(step.answer_bytes) for step in rest)
        self._room.prolong(line, self._stall_s + total / _SLOWEST)
        send_head(line, 200, total)
        pending = bytearray()
        for step in rest:
            pending += adjust(step, turn.seeds, ledger.enter(step))
            if len(pending) >= _PIECE_BYTES:
                line.sendall(pending)
                visit.sent_bytes += len(pending)
                pending = bytearray()
        line.sendall(pending)
        visit.sent_bytes += len(pending)
        self._table.count(
            turn.parties,
            inferences=0 if script.is_set_up else 1,
            sent_bytes=visit.sent_bytes,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.thread_time() - cpu,
        )
