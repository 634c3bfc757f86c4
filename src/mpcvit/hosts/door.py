"""A listening port that strangers cannot jam.

A connection is a stranger's until TLS has shown an allowed certificate. Strangers share a
small waiting room: when one address fills its share, its oldest stranger goes. When the
room is full, the oldest one of the busiest address goes. Certified peers have places of
their own. One deadline covers the handshake and the first message together, so that nobody
stays by sending a byte now and then. A certified peer that may not enter learns why.
"""

import asyncio
import contextlib
import errno
import math
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mpcvit.errors import UserError
from mpcvit.hosts.peer import Peer, peer_of

First = TypeVar("First")
STREAM_BYTES = 1 << 20  # read ahead, and written behind, on one connection
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_S = 0.2
_CLOSING_S = 0.01  # until an evicted stranger's descriptor is free
_REFUSAL_S = 1.0  # for a refused peer to read why


def why_no_door(error: OSError) -> str:
    """Return why a port cannot be listened on, and what to do.

    >>> why_no_door(OSError(errno.EADDRINUSE, "in use (while attempting to bind)"))
    'Address already in use; choose another port, or end what listens there (ss -ltnp)'
    """
    match error.errno:
        case errno.EADDRINUSE:
            advice = "choose another port, or end what listens there (ss -ltnp)"
        case errno.EADDRNOTAVAIL:
            advice = "name an address of this machine, or 0.0.0.0 for all of them"
        case errno.EACCES | errno.EPERM:
            advice = "choose a port above 1023, or ask the administrator"
        case _:
            return error.strerror or str(error)
    return f"{os.strerror(error.errno)}; {advice}"


@dataclass(frozen=True, kw_only=True)
class DoorLimits:
    """The limits of what strangers and certified peers may take up."""

    arrival_s: float = 10.0  # for TLS and the first message together
    strangers: int = 64
    strangers_per_address: int = 16
    connections_per_peer: int = 32
    connections: int | None = None  # of all certified peers together
    stream_bytes: int = STREAM_BYTES
    log_lines_per_minute: int = 20  # about strangers


@dataclass(kw_only=True)
class Stream:
    """The two ends of an open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def abort(self) -> None:
        self.writer.transport.abort()

    async def wait_until_closed(self) -> None:
        """Return when the peer has hung up; until then, discard what it sends.

        Closing a connection with unread bytes would take back what was sent last.
        """
        while await self.reader.read(STREAM_BYTES):
            pass


@dataclass(kw_only=True)
class Guest(Stream, Generic[First]):
    """A certified connection whose first message has come."""

    address: str
    peer: Peer
    first: First


class RefusedError(UserError):
    """A certified peer that may not enter. Its first message was not read."""


class BusyError(RefusedError):
    """A certified peer that may enter a little later."""


@dataclass
class DoorCounts:
    """Counts of what happened at the door so far."""

    accepted: int = 0
    refused: int = 0
    evicted: int = 0
    out_of_resources: int = 0


@dataclass
class _Waiting:
    address: str
    task: "asyncio.Task[None]"


@dataclass
class _LineBudget:
    """Lets a number of log lines pass in each minute, and counts the others."""

    per_minute: int
    left: float = field(init=False)
    suppressed: int = 0
    _at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.per_minute

    def take(self) -> bool:
        now = time.monotonic()
        self.left = min(self.per_minute, self.left + (now - self._at) * self.per_minute / 60)
        self._at = now
        if self.left < 1:
            self.suppressed += 1
            return False
        self.left -= 1
        return True


class Door(Generic[First]):
    """Accepts connections, and hands over those that are certified and have said a first message.

    `admit` returns why a certified peer may not enter, or an empty text. `read_first` reads
    the first message. `note` takes an address and a sentence about a stranger. `explain`
    tells a certified peer that is sent away why.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        *,
        admit: Callable[[Peer], str],
        read_first: Callable[[asyncio.StreamReader], Awaitable[First]],
        note: Callable[[str, str], None],
        explain: Callable[[Stream, UserError], Awaitable[None]] | None = None,
        limits: DoorLimits | None = None,
    ) -> None:
        self._listener, self._context = listener, context
        self._admit, self._read_first = admit, read_first
        self._note, self._explain = note, explain
        self._limits = limits or DoorLimits()
        self._strangers: dict[int, _Waiting] = {}  # the oldest first
        self._guests: Counter[str] = Counter()  # connections by fingerprint
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines = _LineBudget(self._limits.log_lines_per_minute)
        self._next = 0
        self.counts = DoorCounts()

    async def run(self, receive: Callable[["Guest[First]"], Awaitable[None]]) -> None:
        """Accept until cancelled. A connection is closed when `receive` returns."""
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, peer = await loop.sock_accept(self._listener)
                except OSError as error:
                    await self._recover(error)
                    continue
                self._enter(connection, "{}:{}".format(*peer[:2]), receive)
                # accepting does not wait while there is a queue, and those inside need a turn
                await asyncio.sleep(0)
        finally:
            await end_tasks(self._tasks)

    async def _recover(self, error: OSError) -> None:
        """Wait until accepting may work again."""
        pause_s = _PAUSE_S
        if error.errno in _OUT_OF_RESOURCES:
            self.counts.out_of_resources += 1
            if self._strangers:
                self._evict(next(iter(self._strangers)))
                pause_s = _CLOSING_S
        await asyncio.sleep(pause_s)

    def _enter(
        self,
        connection: socket.socket,
        address: str,
        receive: Callable[["Guest[First]"], Awaitable[None]],
    ) -> None:
        self.counts.accepted += 1
        self._make_room(_host(address))
        key, self._next = self._next, self._next + 1
        arriving = _Arriving(connection, self._limits.stream_bytes)
        task = asyncio.ensure_future(self._attend(key, arriving, address, receive))
        self._strangers[key] = _Waiting(address, task)
        self._tasks.add(task)
        # not within the task, which may be cancelled before it begins
        task.add_done_callback(lambda task: self._leave(key, arriving, task))

    def _make_room(self, host: str) -> None:
        """Send away the oldest stranger of the newcomer's address, or of the busiest one."""
        hosts = Counter(_host(waiting.address) for waiting in self._strangers.values())
        if hosts[host] >= self._limits.strangers_per_address:
            crowded = host
        elif len(self._strangers) >= self._limits.strangers:
            crowded = max(hosts, key=lambda each: hosts[each])
        else:
            return
        same = (key for key, found in self._strangers.items() if _host(found.address) == crowded)
        self._evict(next(same))

    def _evict(self, key: int) -> None:
        self.counts.evicted += 1
        self._strangers.pop(key).task.cancel()

    def _leave(self, key: int, arriving: "_Arriving", task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._strangers.pop(key, None)
        arriving.close()
        if arriving.fingerprint:
            self._guests[arriving.fingerprint] -= 1
            self._guests += Counter()  # forgets those that are at zero

    async def _attend(
        self,
        key: int,
        arriving: "_Arriving",
        address: str,
        receive: Callable[["Guest[First]"], Awaitable[None]],
    ) -> None:
        """Take one connection from its first byte to its end."""
        try:
            guest = await asyncio.wait_for(
                self._greet(arriving, key, address), self._limits.arrival_s
            )
        except (asyncio.TimeoutError, TimeoutError):
            reason = f"said nothing usable within {self._limits.arrival_s:g} s"
            await self._send_away(arriving, address, UserError(reason))
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            self._refuse(address, f"no TLS with an accepted certificate: {reason}")
        except (OSError, EOFError):
            self._refuse(address, "hung up before its first message")
        except UserError as error:
            await self._send_away(arriving, address, error)
        except Exception as error:  # whatever it is, the others are let in
            self._refuse(address, f"unexpected {type(error).__name__}")
        else:
            try:
                await receive(guest)
            except UserError as error:
                self._refuse(address, str(error))
            except Exception as error:
                self._refuse(address, f"ended by an unexpected {type(error).__name__}")

    async def _greet(self, arriving: "_Arriving", key: int, address: str) -> "Guest[First]":
        stream = await arriving.handshake(self._context())
        peer = peer_of(stream.writer.get_extra_info("ssl_object"))
        if reason := self._admit(peer):
            raise RefusedError(reason)
        if self._guests[peer.fingerprint] >= self._limits.connections_per_peer:
            raise BusyError(f"'{peer.name}' has too many connections")
        if sum(self._guests.values()) >= (self._limits.connections or math.inf):
            raise BusyError("there are too many connections at the moment")
        self._guests[peer.fingerprint] += 1
        arriving.fingerprint = peer.fingerprint
        self._strangers.pop(key, None)
        first = await self._read_first(stream.reader)
        return Guest(
            reader=stream.reader, writer=stream.writer, address=address, peer=peer, first=first
        )

    async def _send_away(self, arriving: "_Arriving", address: str, error: UserError) -> None:
        self._refuse(address, str(error))
        if self._explain is None or arriving.stream is None:
            return
        with contextlib.suppress(OSError, EOFError, UserError, asyncio.TimeoutError):
            await asyncio.wait_for(self._tell(arriving.stream, error), _REFUSAL_S)

    async def _tell(self, stream: Stream, error: UserError) -> None:
        assert self._explain is not None
        await self._explain(stream, error)
        await stream.wait_until_closed()

    def _refuse(self, address: str, reason: str) -> None:
        self.counts.refused += 1
        if self._lines.take():
            if self._lines.suppressed:
                reason += f" ({self._lines.suppressed} more were not logged)"
                self._lines.suppressed = 0
            with contextlib.suppress(Exception):  # a full disk or a closed pipe
                self._note(address, reason)


class _Arriving:
    """A connection that may be closed at any stage of its handshake."""

    def __init__(self, connection: socket.socket, stream_bytes: int) -> None:
        self._connection, self._stream_bytes = connection, stream_bytes
        self.stream: Stream | None = None
        self.fingerprint = ""  # once the peer counts as a guest

    async def handshake(self, context: ssl.SSLContext) -> Stream:
        loop = asyncio.get_running_loop()
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = asyncio.StreamReader(limit=self._stream_bytes, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, self._connection, ssl=context
        )
        transport.set_write_buffer_limits(high=self._stream_bytes)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self.stream = Stream(reader=reader, writer=writer)
        return self.stream

    def close(self) -> None:
        if self.stream is None:
            self._connection.close()
            return
        with contextlib.suppress(OSError):
            self.stream.writer.close()
        # a peer that does not take what is left must not keep the connection
        asyncio.get_running_loop().call_later(_PAUSE_S * 5, self.stream.abort)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


_AGAIN_S = 2.0  # leaves time to tidy up


async def end_tasks(tasks: "Collection[asyncio.Task[None]]") -> None:
    """Cancel tasks, and return when all of them have ended.

    `asyncio.wait_for` loses a cancellation that comes together with its result (Python
    3.11 and before), so that once may not be enough.
    """
    running = list(tasks)
    pending = set(running)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
    await asyncio.gather(*running, return_exceptions=True)  # nobody else asks how they ended
