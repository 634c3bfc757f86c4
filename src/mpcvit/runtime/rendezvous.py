"""The first words between two hosts, before any computation.

SPU's link needs the addresses of both parties beforehand, and a name that
belongs to one session. So the client first dials the server's port, over TLS
where there are certificates, and says hello: its terms, and the port on which
its end of the link listens. The server answers with its link port and a secret
session name, and with the engine of a lowered program; or that it is busy, or
why it refuses. The connection then stays open for as long as the session lasts:
whose end closes is gone, however far the link has got. No secret and no share
ever passes here.

A message is a length of four bytes and that much JSON.
"""

import contextlib
import json
import re
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mpcvit.dealer.messages import name_of
from mpcvit.errors import UserError
from mpcvit.lowering.engine import EngineChoice
from mpcvit.plain import from_plain, to_plain
from mpcvit.runtime.errors import PartyError
from mpcvit.runtime.roles import Address, Role, resolve, split_address
from mpcvit.runtime.terms import Terms
from mpcvit.runtime.tls import Credentials, require_certified

_FORMAT = "mpcvit-rendezvous/2"
_MOST_BYTES = 1 << 14
_LENGTH = struct.Struct(">I")
_MOST_REASON = 400
_RETRY_S = 0.3
_PAUSE_S = 0.02
_TRIAL_S = 10.0  # for one attempt to connect
_SESSION_NAME = re.compile("[0-9a-f]{32}")


class Verdict(str, Enum):
    """What the server says to a hello, and what both say at the end."""

    WELCOME = "welcome"
    BUSY = "busy"
    REFUSED = "refused"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What the client says first."""

    terms: Terms
    link_port: int

    def to_dict(self) -> dict[str, Any]:
        return {"format": _FORMAT, "terms": dict(self.terms), "link_port": self.link_port}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Hello":
        terms, port = document.get("terms"), _port(document.get("link_port"))
        if not isinstance(terms, dict) or port is None:
            raise PartyError("the hello cannot be understood")
        return cls(terms=terms, link_port=port)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server says to a hello."""

    verdict: Verdict
    reason: str = ""
    link_port: int = 0
    session: str = ""
    engine: EngineChoice | None = None  # of a lowered program

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "link_port": self.link_port,
            "session": self.session,
            "engine": None if self.engine is None else to_plain(self.engine),
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Answer":
        session, port = _session(document.get("session")), _port(document.get("link_port"))
        reason = str(document.get("reason", ""))[:_MOST_REASON]
        engine = document.get("engine")
        try:
            verdict = Verdict(document.get("verdict"))
            engine = None if engine is None else from_plain(EngineChoice, engine, "engine")
        except (ValueError, TypeError, UserError):
            raise PartyError("the answer cannot be understood") from None
        if verdict is Verdict.WELCOME and (session is None or port is None):
            raise PartyError("the answer cannot be understood")
        return cls(
            verdict=verdict,
            reason=reason if reason.isprintable() else repr(reason),
            link_port=port or 0,
            session=session or "",
            engine=engine,
        )


class Line:
    """A connection that carries small messages, and tells when its other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""
        self._open = True
        # a host that vanishes without a word is noticed within half a minute
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    @property
    def certified(self) -> str:
        """The name in the peer's certificate, where there is one."""
        connection = self._connection
        return name_of(connection) if isinstance(connection, ssl.SSLSocket) else ""

    def send(self, document: dict[str, Any], within_s: float) -> None:
        content = json.dumps(document).encode()
        self._connection.settimeout(within_s)
        self._connection.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, within_s: float) -> dict[str, Any]:
        """The next message; raises OSError if none comes, PartyError if it is none of ours."""
        deadline = time.monotonic() + within_s
        while (message := self._next()) is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            self._connection.settimeout(left_s)
            if not (piece := self._connection.recv(_MOST_BYTES)):
                raise ConnectionResetError("the other end hung up")
            self._unread += piece
        return message

    def poll(self) -> dict[str, Any] | None:
        """A message if one has come; `is_open` tells whether more may."""
        self._connection.settimeout(0.0)
        try:
            while self._open and (piece := self._connection.recv(_MOST_BYTES)):
                self._unread += piece
                if len(self._unread) > _MOST_BYTES:
                    break
            self._open = False
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            self._open = False
        return self._next()

    @property
    def is_open(self) -> bool:
        return self._open

    def close(self) -> None:
        self._open = False
        self._connection.close()

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> dict[str, Any] | None:
        if len(self._unread) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._unread)
        if length > _MOST_BYTES:
            raise PartyError("what was sent is no message of mpcvit")
        end = _LENGTH.size + length
        if len(self._unread) < end:
            return None
        content, self._unread = self._unread[_LENGTH.size : end], self._unread[end:]
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise PartyError("what was sent is no message of mpcvit, or one of another version")
        return document


class Watchdog:
    """Ends a session whose other end is gone, unless that end said that it was done."""

    def __init__(self, line: Line, sentence: str, grace_s: float = 3.0) -> None:
        self._line, self._sentence, self._grace_s = line, sentence, grace_s
        self._gone_since: float | None = None
        self.other_is_done = False

    def check(self) -> None:
        message = self._line.poll()
        self.other_is_done |= message is not None and message.get("verdict") == Verdict.DONE.value
        if self._line.is_open or self.other_is_done:
            return
        now = time.monotonic()
        if self._gone_since is None:
            self._gone_since = now
        # what the own party has to say of it is more precise, and may be on its way
        if now - self._gone_since > self._grace_s:
            raise PartyError(self._sentence)

    def part(self, within_s: float = 10.0) -> None:
        """Say that this end is done, and wait for the other to say so."""
        deadline = time.monotonic() + within_s
        with contextlib.suppress(OSError, PartyError):
            self._line.send(Answer(verdict=Verdict.DONE).to_dict(), within_s)
            while self._line.is_open and not self.other_is_done and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
                self.check()


def accept(
    connection: socket.socket, context: ssl.SSLContext | None, within_s: float
) -> tuple[Line, Hello]:
    """Hear a client out: who it is, and what it says. Raises PartyError with the reason."""
    deadline = time.monotonic() + within_s
    connection.settimeout(within_s)
    try:
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
            require_certified(connection, Role.DATA_OWNER)
        line = Line(connection)
        return line, Hello.from_dict(line.receive(deadline - time.monotonic()))
    except TimeoutError:
        message = f"said no hello within {within_s:g} s"
    except ssl.SSLError as error:
        message = f"no TLS with an accepted certificate: {_reason(error)}"
    except OSError:
        message = "hung up before a hello"
    except PartyError as error:
        message = str(error)
    connection.close()
    raise PartyError(message)


def dial(
    server: Address,
    source_host: str,
    hello: Hello,
    credentials: Credentials | None,
    within_s: float,
) -> tuple[Line, Answer]:
    """Say hello to the server until it answers, for a bounded time.

    Keeps trying while nobody listens and while the server is busy.
    """
    numeric = resolve(server)
    deadline = time.monotonic() + within_s
    while True:
        try:
            connection = socket.create_connection(
                numeric,
                timeout=min(_TRIAL_S, max(0.1, deadline - time.monotonic())),
                source_address=(source_host, 0),
            )
        except OSError as error:
            failure = f"nobody answers at {server}: {error.strerror or error}"
        else:
            line, answer = _converse(connection, server, hello, credentials, within_s)
            if answer.verdict is Verdict.WELCOME:
                return line, answer
            line.close()
            if answer.verdict is not Verdict.BUSY:
                raise PartyError(f"the server at {server} refuses: {answer.reason}")
            failure = f"the server at {server} is busy with another client"
        if time.monotonic() + _RETRY_S > deadline:
            raise PartyError(f"{failure} (tried for {within_s:g} s)")
        time.sleep(_RETRY_S)


def _converse(
    connection: socket.socket,
    server: Address,
    hello: Hello,
    credentials: Credentials | None,
    within_s: float,
) -> tuple[Line, Answer]:
    host, _ = split_address(server)
    connection.settimeout(within_s)
    try:
        if credentials is not None:
            connection = credentials.dialling_context().wrap_socket(
                connection, server_hostname=host
            )
            require_certified(connection, Role.MODEL_OWNER)
        line = Line(connection)
        line.send(hello.to_dict(), within_s)
        return line, Answer.from_dict(line.receive(within_s))
    except ssl.SSLCertVerificationError as error:
        message = f"the certificate of {server} is not accepted: {error.verify_message}"
    except TimeoutError:
        message = f"{server} took the connection but said nothing for {within_s:g} s"
    except ssl.SSLEOFError:
        message = f"{server} hung up; does it speak TLS?"
    except ssl.SSLError as error:
        message = f"{server} does not accept this certificate, or no TLS: {_reason(error)}"
    except OSError:
        hint = "" if credentials is not None else "; does it want --tls?"
        message = f"{server} hung up without an answer{hint}"
    except PartyError as error:
        message = f"{server} is no server of this kind: {error}"
    connection.close()
    raise PartyError(message)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _port(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**16 else None


def _session(value: Any) -> str | None:
    return value if isinstance(value, str) and _SESSION_NAME.fullmatch(value) else None
