"""One client's session on the server: its party, its tunnel and its control."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from secrets import token_hex

from mpcvit.artifacts.profile import Profile
from mpcvit.errors import UserError
from mpcvit.hosts.door import Guest, Stream
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.agreement import Request
from mpcvit.secure.parties.roles import ROLES, Role
from mpcvit.secure.parties.sockets import unix_address
from mpcvit.secure.parties.supervise import own_address, watch
from mpcvit.secure.service.control import ControlConnection
from mpcvit.secure.service.frames import FrameChecker
from mpcvit.secure.service.messages import START, Answer, Hello, Join, Way
from mpcvit.secure.service.pool import StandbyParty
from mpcvit.secure.service.tunnel import Tunnel

_TUNNEL_SOCKET = "tunnel.sock"
_WAIT_S = 20.0  # for a connection that the client opens in advance


@dataclass(kw_only=True)
class ServerSession:
    """A session that runs. Connections join it by its name and the client's fingerprint."""

    fingerprint: str
    party: StandbyParty
    profile: Profile
    control: ControlConnection
    stop: threading.Event
    name: str = field(default_factory=lambda: token_hex(16))
    is_revoked: bool = False
    _violation: str = ""
    _parked: "asyncio.Queue[Stream]" = field(default_factory=asyncio.Queue)
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        roles = ROLES[self.profile.protocol]
        self._tunnel = Tunnel(
            own_address(self.party.folder),
            unix_address(self.party.folder / _TUNNEL_SOCKET),
            FrameChecker(peer_rank=roles.index(Role.DATA_OWNER), session=self.name),
            reach=self._reach,
            fail=self._fail,
        )

    async def run(
        self,
        hello: Hello,
        welcome: Answer,
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> str:
        """Run the session to its end; return how it ended: "done", or why not."""
        reason = "the server broke the session off"  # unless it gets to its end
        try:
            await self._tunnel.open()
            self.control.send(welcome)
            tunnel = unix_address(self.party.folder / _TUNNEL_SOCKET)
            self.party.process.connect(
                {Role.DATA_OWNER: tunnel},
                self.name,
                self.profile,
                announced=Request(images=hello.images, batch_size=hello.batch_size),
            )
            await in_thread(self._watch)
            reason = ""
        except UserError as error:
            # a client that said so has its answers, whatever became of the party meanwhile
            reason = "" if self.control.peer_is_done else str(error)
        finally:
            self._over.set()
            await self.control.end(reason)
            await self._tunnel.close()
        return self._sentence(reason)

    async def join(self, guest: Guest[Hello | Join], way: Way) -> None:
        """Carry one of the session's connections, until it ends."""
        if way is Way.FORTH:
            await self._tunnel.take(guest)
            return
        self._parked.put_nowait(guest)
        waits = [
            asyncio.ensure_future(self._over.wait()),
            asyncio.ensure_future(_closed(guest)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _reach(self) -> Stream:
        """Return a connection on which this host's SPU reaches the client's."""
        while True:
            try:
                stream = await asyncio.wait_for(self._parked.get(), _WAIT_S)
            except asyncio.TimeoutError:
                self._fail("the client opened no connection for the way back")
                raise PartyError(self._violation) from None
            if not stream.reader.at_eof() and not stream.writer.is_closing():
                stream.writer.write(START)
                return stream

    def _fail(self, violation: str) -> None:
        self._violation = self._violation or violation

    def _watch(self) -> None:
        watch([self.party.process], self.profile, self.party.journal, self._check)

    def _check(self) -> None:
        if self.stop.is_set():
            raise PartyError("the server was stopped")
        if self.is_revoked:
            raise PartyError("the client's certificate was revoked")
        if self._violation:
            raise PartyError(self._violation)
        self.control.check()

    def _sentence(self, reason: str) -> str:
        if not reason:
            return "done"
        if self._violation or self.is_revoked or self.stop.is_set():
            return self._violation or reason
        if self.control.is_lost:
            return f"the client vanished {self.party.journal.where(Role.MODEL_OWNER)}"
        return reason


async def _closed(stream: Stream) -> None:
    with contextlib.suppress(OSError):
        await stream.writer.wait_closed()
