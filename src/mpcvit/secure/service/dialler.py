"""The client's connections to a server, all of them dialled from here."""

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mpcvit.errors import UserError
from mpcvit.hosts.credentials import Credentials, why_not_accepted
from mpcvit.hosts.door import STREAM_BYTES, Stream, end_tasks
from mpcvit.hosts.peer import SERVER, peer_of, read_allowed
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.roles import Address, resolve, split_address
from mpcvit.secure.service.control import ControlConnection
from mpcvit.secure.service.frames import FrameChecker
from mpcvit.secure.service.messages import (
    SILENCE_S,
    START,
    Answer,
    Hello,
    Join,
    Verdict,
    Way,
    Word,
    encode,
    read_message,
)
from mpcvit.secure.service.tunnel import Tunnel

_RETRY_S = 0.3
_ATTEMPT_S = 10.0  # for one connection with TLS
_PARKED = 2  # connections that wait for the server's SPU: one to use, one to reconnect
_TURNS = 5  # of the loop, in which aborted connections close
Result = TypeVar("Result")


class ServerLine:
    """A session with a server: its control connection, and the tunnel of its SPU connections.

    Runs an event loop in a thread of its own. `waiting` takes the client's place in the
    server's queue.
    """

    def __init__(
        self,
        server: Address,
        credentials: Credentials,
        *,
        connect_s: float,
        wait_s: float,
        waiting: Callable[[int], None] = lambda place: None,
    ) -> None:
        self._server, self._credentials = server, credentials
        self._connect_s, self._wait_s, self._waiting = connect_s, wait_s, waiting
        self._allowed = read_allowed(credentials.allowed)
        self._context = credentials.dialling_context()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stream: Stream | None = None
        self._control: ControlConnection | None = None
        self._tunnel: Tunnel | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._fingerprint = ""
        self._answer = Answer(verdict=Verdict.BUSY)
        self._violation = ""
        self._has_joined = False  # whether any of the session's connections was opened

    # for the thread that runs the session

    def knock(self) -> None:
        """Raise PartyError unless a server that this client accepts answers; ask nothing of it."""
        self._call(self._knock())

    def open(self, hello: Hello) -> Answer:
        """Ask for a session, and return the answer that opens it.

        Waits in the server's queue, and comes back when the server says so.
        """
        return self._call(self._open(hello))

    def carry(self, own: Address, peer: Address, checker: FrameChecker) -> None:
        """Connect the local SPU, which listens on `own` and dials `peer`, with the server's."""
        self._call(self._carry(own, peer, checker))

    def check(self) -> None:
        """Raise PartyError if the session cannot go on."""
        if self._violation:
            raise PartyError(self._violation)
        assert self._control is not None
        self._control.check()

    @property
    def server_is_done(self) -> bool:
        return self._control is not None and self._control.peer_is_done

    def end(self, reason: str = "") -> None:
        """Tell the server that the session is over."""
        if self._control is not None:
            self._call(self._control.end(reason))

    def __enter__(self) -> "ServerLine":
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        with contextlib.suppress(Exception):
            if error is not None:
                self.end(str(error) if isinstance(error, PartyError) else "the client stopped")
            self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # within the loop

    async def _knock(self) -> None:
        self._stream, _ = await self._dial_patiently()

    async def _open(self, hello: Hello) -> Answer:
        give_up = time.monotonic() + self._wait_s
        while True:
            self._stream, self._fingerprint = await self._dial_patiently()
            answer = await self._ask(self._stream, hello)
            if answer.verdict is Verdict.WELCOME:
                self._answer = answer
                self._control = ControlConnection(self._stream, f"the server at {self._server}")
                self._control.start()
                return answer
            self._stream.abort()
            if answer.verdict is not Verdict.BUSY:
                raise PartyError(f"the server at {self._server} refuses: {answer.reason}")
            if time.monotonic() + answer.retry_s > give_up:
                raise PartyError(
                    f"the server at {self._server} is busy and its queue is full; try again in "
                    f"{answer.retry_s:g} s"
                )
            self._waiting(0)
            await asyncio.sleep(answer.retry_s)

    async def _ask(self, stream: Stream, hello: Hello) -> Answer:
        """Say hello, and wait for an answer that is not a place in the queue."""
        give_up = time.monotonic() + self._wait_s
        silent = ControlConnection(stream, "")  # only to say that this end is alive
        alive = asyncio.ensure_future(silent.stay_alive())
        try:
            stream.writer.write(encode(hello))
            while True:
                answer = await asyncio.wait_for(read_message(stream.reader), SILENCE_S)
                if isinstance(answer, Word):
                    continue
                if not isinstance(answer, Answer):
                    raise PartyError(f"{self._server} sent a message out of turn")
                if answer.verdict is not Verdict.WAITING:
                    return answer
                self._waiting(answer.place)
                if time.monotonic() > give_up:
                    raise PartyError(
                        f"no place became free at {self._server} within {self._wait_s:g} s; "
                        f"place {answer.place} in the queue was reached; try later, or wait longer"
                    )
        except asyncio.TimeoutError:
            message = f"{self._server} took the connection but said nothing for {SILENCE_S:g} s"
        except (OSError, EOFError):
            # TLS 1.3 tells a refused certificate only after the handshake
            message = (
                f"{self._server} hung up without an answer; is this client on its list of "
                "allowed clients?"
            )
        except PartyError as error:
            message = str(error)
        finally:
            alive.cancel()
        stream.abort()
        raise PartyError(message)

    async def _carry(self, own: Address, peer: Address, checker: FrameChecker) -> None:
        self._tunnel = Tunnel(own, peer, checker, reach=self._reach, fail=self._fail)
        await self._tunnel.open()
        self._tasks = [asyncio.ensure_future(self._park()) for _ in range(_PARKED)]

    async def _reach(self) -> Stream:
        return await self._join(Way.FORTH)

    async def _park(self) -> None:
        """Keep a connection open on which the server's SPU will reach this one's."""
        assert self._tunnel is not None
        assert self._control is not None
        give_up = time.monotonic() + min(_ATTEMPT_S, self._connect_s)
        while not self._control.is_lost:  # a server that was started again knows no such session
            try:
                stream = await self._join(Way.BACK)
                self._has_joined = True
                await _wait_until_used(stream)
            except (OSError, EOFError, UserError, asyncio.TimeoutError) as error:
                is_refused = isinstance(error, ConnectionRefusedError | UserError)
                if not self._has_joined and (is_refused or time.monotonic() > give_up):
                    address = self._answer.address or self._server
                    reason = str(error) or "no answer"
                    if isinstance(error, ConnectionRefusedError):
                        reason = "connection refused"
                    self._fail(f"cannot open the session's connections to {address}: {reason}")
                await asyncio.sleep(_RETRY_S)
                continue
            self._tunnel.take_later(stream)

    async def _join(self, way: Way) -> Stream:
        if self._control is not None and self._control.is_lost:
            raise PartyError("the session is over")
        stream, fingerprint = await self._dial(self._answer.address or self._server)
        if fingerprint != self._fingerprint:
            stream.abort()
            raise PartyError("another server answered than the one that opened the session")
        stream.writer.write(encode(Join(session=self._answer.session, way=way)))
        return stream

    def _fail(self, violation: str) -> None:
        self._violation = self._violation or violation

    async def _dial_patiently(self) -> tuple[Stream, str]:
        """Dial the server until it answers, for a bounded time."""
        deadline = time.monotonic() + self._connect_s
        while True:
            try:
                return await self._dial(self._server)
            except ConnectionRefusedError:
                raise PartyError(
                    f"nobody listens at {self._server}; is `mpcvit serve` running there?"
                ) from None
            except (OSError, asyncio.TimeoutError) as error:
                if isinstance(error, ssl.SSLError):
                    raise PartyError(_why_no_tls(self._server, error)) from None
                reason = getattr(error, "strerror", None) or "no answer"
                if time.monotonic() + _RETRY_S > deadline:
                    raise PartyError(
                        f"cannot reach {self._server}: {reason} (tried for {self._connect_s:g} s)"
                    ) from None
                await asyncio.sleep(_RETRY_S)

    async def _dial(self, address: Address) -> tuple[Stream, str]:
        """Return a TLS connection to an allowed server, and its fingerprint."""
        host, _ = split_address(address)
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(
                *resolve(address), ssl=self._context, server_hostname=host, limit=STREAM_BYTES
            ),
            min(_ATTEMPT_S, self._connect_s),
        )
        stream = Stream(reader=reader, writer=writer)
        peer = peer_of(writer.get_extra_info("ssl_object"))
        if peer.role != SERVER or peer.fingerprint not in self._allowed:
            stream.abort()
            raise PartyError(
                f"the certificate at {address} is not on the list of servers in "
                f"{self._credentials.allowed}: SHA-256 {peer.fingerprint}"
            )
        return stream, peer.fingerprint

    async def _close(self) -> None:
        await end_tasks(self._tasks)
        if self._tunnel is not None:
            await self._tunnel.close()
        if self._control is not None:
            await self._control.stop()
        if self._stream is not None:
            self._stream.abort()
        for _ in range(_TURNS):
            await asyncio.sleep(0)


async def _wait_until_used(stream: Stream) -> None:
    """Return when the server's SPU dials on a connection; close it if that never happens."""
    try:
        if await stream.reader.readexactly(1) != START:
            raise PartyError("the server began a connection in an unknown way")
    except BaseException:
        stream.abort()
        raise


def _why_no_tls(server: Address, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {server} is not accepted: {why_not_accepted(error)}"
    if isinstance(error, ssl.SSLEOFError):
        return f"{server} hung up; does it speak TLS?"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    return f"{server} does not accept this certificate, or no TLS: {reason}"
