"""The process that holds a server's port, its log and the tunnels of its sessions."""

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from mpcvit.artifacts.engine import EngineSettings
from mpcvit.artifacts.profile import Dealer, Profile
from mpcvit.errors import UserError
from mpcvit.hosts.credentials import Credentials, ListeningContext
from mpcvit.hosts.door import Door, Guest, RefusedError, Stream
from mpcvit.hosts.log import LogWriter
from mpcvit.hosts.peer import CLIENT, Peer, read_allowed
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.parties.agreement import Terms, first_difference
from mpcvit.secure.parties.job import OwnModel
from mpcvit.secure.parties.roles import Address, Role
from mpcvit.secure.service.control import ControlConnection
from mpcvit.secure.service.messages import Answer, Hello, Join, Verdict, encode, read_first
from mpcvit.secure.service.metrics import ServerMetrics
from mpcvit.secure.service.pool import Pool, StandbyParty, Waiter
from mpcvit.secure.service.quota import State, today
from mpcvit.secure.service.session import ServerSession
from mpcvit.secure.service.visit import ConnectionLogLine, Visitor

_TICK_S = 0.2
_REFRESH_S = 5.0
_PLACE_EVERY_S = 5.0
_RETRY_S = 30.0
_LINGER_S = 2.0  # after which the connections of a session are closed


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """The limits of what clients may ask of a server; zero means no limit."""

    clients: int = 0  # sessions at the same time; 0: as many as there are cores, at most 8
    queue: int = 16  # clients that wait for a place
    max_images: int = 10_000  # in one session
    max_batch: int = 64
    max_images_per_day: int = 0  # of one client

    def __post_init__(self) -> None:
        if min(self.clients, self.queue, self.max_images_per_day) < 0:
            raise UserError("clients, queue and max_images_per_day must not be negative")
        if min(self.max_images, self.max_batch) < 1:
            raise UserError("max_images and max_batch must be at least 1")

    @property
    def places(self) -> int:
        return self.clients or min(8, os.cpu_count() or 1)


class Server:
    """Admits clients, keeps the queue, and runs a session for each place."""

    def __init__(
        self,
        *,
        own: OwnModel,
        dealer: DealerEndpoint | None = None,
        profile: Profile,
        terms: Terms,
        engine: EngineSettings | None,
        credentials: Credentials,
        limits: ServeLimits,
        state: State,
        advertise: Address,
        metrics: ServerMetrics,
        max_sessions: int | None,
        stop: threading.Event,
        log: Callable[[ConnectionLogLine], None],
        note: Callable[[str], None],
    ) -> None:
        self._own, self._dealer = own, dealer
        self._profile, self._terms, self._engine = profile, terms, engine
        self._credentials, self._limits, self._state = credentials, limits, state
        self._advertise, self._metrics = advertise, metrics
        self._sessions_left = max_sessions
        self._stop, self._log, self._note_line = stop, log, note
        self._sessions: dict[str, ServerSession] = {}
        self._allowed = self._read_allowed()
        self._reload = False

    async def run(self, listener: socket.socket, started: Callable[[], None]) -> None:
        self._lines = LogWriter(lost=self._metrics.log_errors.inc)
        context = ListeningContext(self._credentials, self._note)
        self._pool = Pool(
            self._limits.places,
            partial(StandbyParty, self._own, self._profile, self._limits.places, self._dealer),
            self._note,
        )
        door = Door(
            listener,
            lambda: context.current,
            admit=self._why_not,
            read_first=read_first,
            note=self._note_stranger,
            explain=_explain,
        )
        self._follow(door, context)
        await self._pool.open()
        with _on_hang_up(self._ask_to_reload):
            self._lines.put(started)
            accepting = asyncio.ensure_future(door.run(self._receive))
            try:
                await self._tick(context, accepting)
            finally:
                self._stop.set()
                while self._sessions:  # each of them sees the stop, and says so
                    await asyncio.sleep(_TICK_S)
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
                await self._pool.close()
                self._lines.close()

    async def _tick(self, context: ListeningContext, accepting: "asyncio.Future[None]") -> None:
        refreshed = time.monotonic()
        while not self._stop.is_set() and not accepting.done():
            await asyncio.sleep(_TICK_S)
            if self._reload or time.monotonic() - refreshed > _REFRESH_S:
                refreshed = time.monotonic()
                context.refresh()
                if self._reload or self._state.is_shared:
                    self._reload = False
                    await asyncio.get_running_loop().run_in_executor(None, self._refresh_allowed)

    # who may come

    def _read_allowed(self) -> dict[str, str]:
        if self._state.is_shared:
            return self._state.allowed()
        return read_allowed(self._credentials.allowed)

    def _refresh_allowed(self) -> None:
        """Read the list of clients again, and end the sessions of those that left it."""
        try:
            self._allowed = self._read_allowed()
        except UserError as error:
            self._note(f"the former list of clients stays: {error}")
            return
        for session in list(self._sessions.values()):
            session.is_revoked = session.fingerprint not in self._allowed

    def _ask_to_reload(self) -> None:
        self._reload = True

    def _why_not(self, peer: Peer) -> str:
        if peer.role != CLIENT:
            return f"the certificate is that of a '{peer.role}', not of a client"
        if peer.fingerprint not in self._allowed:
            return f"the certificate '{peer.name}' is not on the list of allowed clients"
        return ""

    # one connection

    async def _receive(self, guest: "Guest[Hello | Join]") -> None:
        first = guest.first
        if isinstance(first, Hello):
            await self._attend(guest, first)
            return
        session = self._sessions.get(first.session)
        # the name alone is not enough: another client may have learnt it
        if session is None or session.fingerprint != guest.peer.fingerprint:
            self._metrics.refused.labels("no such session").inc()
            raise RefusedError(f"'{guest.peer.name}' has no such session")
        await session.join(guest, first.way)

    async def _attend(self, guest: "Guest[Hello | Join]", hello: Hello) -> None:
        visitor = Visitor(
            peer=guest.address, certificate=self._allowed.get(guest.peer.fingerprint, "")
        )
        try:
            visitor.ended = await self._serve(guest, hello, visitor)
        except (UserError, OSError) as error:
            _break_off(guest, visitor, str(error))
        except asyncio.CancelledError:
            _break_off(guest, visitor, "the server was stopped")
        except Exception as error:  # whatever it is, the other clients are served
            _break_off(guest, visitor, f"unexpected {type(error).__name__}")
        finally:
            visit = visitor.to_line()
            if visitor.journal is not None:
                self._count(visit)
                # Closed TLS connections are cycles of 256 kB each, which Python by itself
                # would let grow to many megabytes before it looks for them.
                asyncio.get_running_loop().call_later(_LINGER_S, gc.collect)
            self._lines.put(partial(self._log, visit))

    async def _serve(self, guest: "Guest[Hello | Join]", hello: Hello, visitor: Visitor) -> str:
        """Refuse, put off or serve a client; return how it ended."""
        # before it takes a party, which serves once and costs a loaded model
        reason = self._refusal(hello) or await self._in_executor(
            self._why_no_budget, guest.peer.fingerprint, hello.images
        )
        if reason:
            return self._refuse(guest, reason)
        client, waiting = guest.peer.fingerprint, self._pool.waiting - self._pool.ready
        if waiting >= self._limits.queue and not self._pool.make_room(client):
            return self._put_off(guest)
        control = ControlConnection(guest, "the client")
        control.start()
        waiter = self._pool.enter(client)
        try:
            party = await self._await_turn(waiter, control)
            if party is None:
                return self._put_off(guest) if waiter.is_put_off else "the client left the queue"
            return await self._run_session(guest, hello, visitor, control, party)
        finally:
            self._pool.leave(waiter)
            await control.stop()

    def _refusal(self, hello: Hello) -> str:
        if reason := self._why_other_dealer(hello):
            return reason
        if reason := first_difference(Role.MODEL_OWNER, self._terms, Role.DATA_OWNER, hello.terms):
            return reason
        for what, asked, most in (
            ("images in one session", hello.images, self._limits.max_images),
            ("images at a time", hello.batch_size, self._limits.max_batch),
        ):
            if asked > most:
                return f"{asked} {what} are more than the {most} that this server takes"
        return ""

    def _why_other_dealer(self, hello: Hello) -> str:
        """Return what a client without a dealer, or with one too many, should do."""
        dealers = [terms.get("profile's dealer") for terms in (self._terms, hello.terms)]
        match [dealer == Dealer.THIRD_PARTY.value for dealer in dealers]:
            case [True, False]:
                return "this server works with a dealer; name it with --dealer and --dealer-key"
            case [False, True]:
                return "this server works without a dealer; leave out --dealer and --dealer-key"
        return ""

    def _refuse(self, guest: "Guest[Hello | Join]", reason: str) -> str:
        _send_refusal(guest, reason)
        self._metrics.refused.labels("terms").inc()
        return f"refused: {reason}"

    def _put_off(self, guest: "Guest[Hello | Join]") -> str:
        guest.writer.write(encode(Answer(verdict=Verdict.BUSY, retry_s=_RETRY_S)))
        self._metrics.refused.labels("the queue is full").inc()
        return "put off: the queue is full"

    async def _await_turn(self, waiter: Waiter, control: ControlConnection) -> StandbyParty | None:
        """Return a party when the client's turn has come; say its place in the queue meanwhile."""
        over = asyncio.ensure_future(control.wait_until_over())
        try:
            # a party that is ready takes the client at once, and then there is no queue
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({waiter.party, over}, timeout=_TICK_S, return_when=first)
            while not waiter.party.done():
                if self._stop.is_set():
                    raise UserError("the server was stopped")
                if place := self._pool.place_of(waiter):
                    control.send(Answer(verdict=Verdict.WAITING, place=place))
                await asyncio.wait(
                    {waiter.party, over},
                    timeout=_PLACE_EVERY_S,
                    return_when=first,
                )
                if over.done():
                    return None
            return waiter.party.result()
        finally:
            over.cancel()

    async def _run_session(
        self,
        guest: "Guest[Hello | Join]",
        hello: Hello,
        visitor: Visitor,
        control: ControlConnection,
        party: StandbyParty,
    ) -> str:
        client, day = guest.peer.fingerprint, today()
        most = self._limits.max_images_per_day
        if most and (reason := await self._in_executor(self._reserve, client, hello.images, day)):
            return self._refuse(guest, reason)
        session = ServerSession(
            fingerprint=client,
            party=party,
            profile=self._profile,
            control=control,
            stop=self._stop,
        )
        self._sessions[session.name] = session
        welcome = Answer(
            verdict=Verdict.WELCOME,
            session=session.name,
            address=self._advertise,
            engine=self._engine,
        )
        try:
            if reason := self._why_not(guest.peer):  # the list may have changed while it waited
                return self._refuse(guest, reason)
            visitor.journal = party.journal
            # at once, as this task may be cancelled before it returns
            visitor.ended = await session.run(hello, welcome, self._pool.watch)
            return visitor.ended
        finally:
            del self._sessions[session.name]
            unanswered = hello.images - visitor.images
            if most and unanswered > 0:
                await self._in_executor(self._state.release, client, unanswered, day)

    def _reserve(self, client: str, images: int, day: str) -> str:
        """Take images from a client's budget; return why not, if they are not left."""
        most = self._limits.max_images_per_day
        if self._state.reserve(client, images, most, day) is not None:
            return ""
        return self._why_no_budget(client, images) or "the budget was used up at this moment"

    def _why_no_budget(self, client: str, images: int) -> str:
        most = self._limits.max_images_per_day
        left = max(0, most - self._state.used(client)) if most else images
        if images <= left:
            return ""
        return (
            f"{left} of {most} images are left for today, and {images} were asked for; "
            "the next day begins at 00:00 UTC"
        )

    async def _in_executor(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)

    # log and numbers

    def _count(self, visit: ConnectionLogLine) -> None:
        """Count a session that has ended."""
        self._metrics.sessions.labels("done" if visit.ended == "done" else "failed").inc()
        self._metrics.images.inc(visit.images)
        self._metrics.sent_bytes.inc(visit.sent_bytes)
        self._metrics.received_bytes.inc(visit.received_bytes)
        if self._sessions_left is not None:
            self._sessions_left -= 1
            if self._sessions_left <= 0:
                self._stop.set()

    def _note(self, sentence: str) -> None:
        self._lines.put(partial(self._note_line, sentence))

    def _note_stranger(self, address: str, reason: str) -> None:
        self._lines.put(partial(self._log, Visitor(peer=address, ended=reason).to_line()))

    def _follow(self, door: "Door[Any]", context: ListeningContext) -> None:
        follow = self._metrics.follow
        follow("sessions_running", "Sessions that run", lambda: self._pool.serving)
        follow("parties_ready", "Parties that wait for a client", lambda: self._pool.ready)
        follow("clients_waiting", "Clients in the queue", lambda: self._pool.waiting)
        follow("connections_accepted", "Connections so far", lambda: door.counts.accepted)
        follow("strangers_refused", "Strangers that were refused", lambda: door.counts.refused)
        follow("strangers_evicted", "Strangers that made room", lambda: door.counts.evicted)
        follow(
            "certificate_expiry_seconds",
            "When the certificate expires, in seconds since 1970",
            lambda: context.expires.timestamp(),
        )


async def _explain(stream: Stream, error: UserError) -> None:
    """Answer a client that may not enter, unless its connection is one for SPU's bytes."""
    if isinstance(error, RefusedError) and isinstance(await read_first(stream.reader), Join):
        return
    _send_refusal(stream, str(error))


def _break_off(stream: Stream, visitor: Visitor, reason: str) -> None:
    """Note why a visit ended; a client whose session has not begun learns it here."""
    visitor.ended = visitor.ended or reason
    if visitor.journal is None:
        _send_refusal(stream, reason)


def _send_refusal(stream: Stream, reason: str) -> None:
    stream.writer.write(encode(Answer(verdict=Verdict.REFUSED, reason=reason)))


@contextmanager
def _on_hang_up(action: Callable[[], None]) -> Iterator[None]:
    """Call a function on SIGHUP while the block runs, where signals can be caught."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGHUP, lambda *_: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, former)
