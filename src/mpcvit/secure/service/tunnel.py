"""Carries SPU's connections between sockets on this host and TLS connections to the peer.

SPU listens on one socket, and dials another as its peer, both in a folder that only this
user may enter. Each connection of SPU's is a TLS connection of its own, which the client
opens. Those on which the server's SPU will reach the client's are opened in advance, and
wait.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine

from mpcvit.errors import UserError
from mpcvit.hosts.door import STREAM_BYTES, Stream, end_tasks
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.roles import Address
from mpcvit.secure.parties.sockets import dial, listen
from mpcvit.secure.service.frames import HEAD, FrameChecker, split_head

_PIECE_BYTES = 1 << 18
_DIAL_S = 60.0  # the local SPU may still be starting
_PAUSE_S = 0.02

Check = Callable[[bytes, int], None]


class Tunnel:
    """One session's connections: `own` is where the local SPU listens, `peer` what it dials.

    `reach` gives a connection to the peer for each one that the local SPU dials.
    `fail` takes the sentence that ends the session, when the peer sends what it must not.
    """

    def __init__(
        self,
        own: Address,
        peer: Address,
        checker: FrameChecker,
        *,
        reach: Callable[[], Awaitable[Stream]],
        fail: Callable[[str], None],
    ) -> None:
        self._own, self._peer = own, peer
        self._checker, self._reach, self._fail = checker, reach, fail
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to take the local SPU's connections."""
        self._server = await asyncio.start_unix_server(
            self._dialled, sock=listen(self._peer), limit=STREAM_BYTES
        )

    async def take(self, far: Stream) -> None:
        """Carry a connection that the peer's SPU dialled, until it ends."""
        try:
            near = await self._dial_local()
        except (OSError, asyncio.CancelledError):
            far.abort()
            return
        await self._splice(
            far, near, [_carry_frames(far, near, self._checker.check_request), _carry(near, far)]
        )

    def take_later(self, far: Stream) -> None:
        """Carry a connection like `take`, in the background."""
        self._keep(asyncio.ensure_future(self.take(far)))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await end_tasks(self._tasks)

    async def _dialled(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        near = Stream(reader=reader, writer=writer)
        try:
            far = await self._reach()
        except (OSError, EOFError, UserError, asyncio.TimeoutError, asyncio.CancelledError):
            near.abort()  # SPU dials again for a while
            return
        await self._splice(
            far,
            near,
            [
                _carry_frames(far, near, self._checker.check_answer),
                _carry_frames(near, far, self._checker.note_sent),
            ],
        )

    async def _dial_local(self) -> Stream:
        deadline = asyncio.get_running_loop().time() + _DIAL_S
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(
                    sock=dial(self._own, patient=False), limit=STREAM_BYTES
                )
                return Stream(reader=reader, writer=writer)
            except OSError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def _splice(
        self, far: Stream, near: Stream, both_ways: list[Coroutine[None, None, None]]
    ) -> None:
        """Carry bytes both ways until either end closes."""
        for stream in (far, near):
            stream.writer.transport.set_write_buffer_limits(high=STREAM_BYTES)
        ways = [asyncio.ensure_future(way) for way in both_ways]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                error = way.exception()
                if isinstance(error, PartyError):
                    self._fail(str(error))
        except asyncio.CancelledError:
            pass
        finally:
            for way in ways:
                way.cancel()
            for stream in (far, near):
                stream.abort()
            # a session may end at this very moment, and cancels this too
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*ways, return_exceptions=True)

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _carry(source: Stream, target: Stream) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.reader.read(_PIECE_BYTES):
            target.writer.write(piece)
            await target.writer.drain()


async def _carry_frames(source: Stream, target: Stream, check: Check) -> None:
    """Carry whole frames, each once it has passed the check."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await source.reader.readexactly(HEAD.size)
            body_bytes, meta_bytes = split_head(head)
            body = await source.reader.readexactly(body_bytes)
            check(body, meta_bytes)
            target.writer.write(head + body)
            await target.writer.drain()
