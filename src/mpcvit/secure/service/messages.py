"""The messages between client and server, beside SPU's own.

Every connection to the server's port begins with one message of the client:

    Hello   on the control connection: terms, and how many images the client brings
    Join    on a connection for SPU's bytes: the session, and which SPU dials on it

The server answers a Hello with Answers: a place in the queue, a session, or a refusal. The
control connection then stays open as long as the session. Both ends send a Word every few
seconds, and at the end why the session ended. No secret and no share passes here.

A message is a length of four bytes and that much JSON. The length is checked before
anything is read, and the dataclasses check what the codec made of the JSON.
"""

import asyncio
import json
import re
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from mpcvit import codec
from mpcvit.artifacts.engine import EngineSettings
from mpcvit.codec import require, tagged
from mpcvit.errors import UserError
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.agreement import Terms
from mpcvit.secure.parties.roles import Address, split_address

FORMAT = "mpcvit-control/2"
ALIVE_EVERY_S = 5.0
SILENCE_S = 20.0  # without a Word, the other end is gone
START = b"!"  # tells a waiting connection that SPU's bytes follow
_MAX_BYTES = 1 << 14
_MAX_REASON = 400
_MAX_TERMS = 64
_MAX_IMAGES = 1 << 30
_LENGTH = struct.Struct(">I")
_SESSION_NAME = re.compile("[0-9a-f]{32}")


class Way(str, Enum):
    """The side whose SPU dials on a connection."""

    FORTH = "forth"  # the client's
    BACK = "back"  # the server's


class Verdict(str, Enum):
    """A kind of answer of the server to a hello."""

    WAITING = "waiting"
    WELCOME = "welcome"
    BUSY = "busy"
    REFUSED = "refused"


@tagged("hello")
@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first message of a client that wants a session."""

    terms: Terms
    images: int
    batch_size: int

    def __post_init__(self) -> None:
        # no list and no section, which could be nested deeply
        flat = not any(isinstance(value, list | dict) for value in self.terms.values())
        require(flat and len(self.terms) <= _MAX_TERMS, "terms", "must be few and flat")
        for name in ("images", "batch_size"):
            require(1 <= getattr(self, name) <= _MAX_IMAGES, name, "is out of range")


@tagged("join")
@dataclass(frozen=True, kw_only=True)
class Join:
    """The first message on a connection that belongs to a session."""

    session: str
    way: Way

    def __post_init__(self) -> None:
        require(_is_session(self.session), "session", "is no name of a session")


@tagged("answer")
@dataclass(frozen=True, kw_only=True)
class Answer:
    """The server's answer to a hello."""

    verdict: Verdict
    reason: str = ""
    place: int = 0  # in the queue; the next one is 1
    retry_s: float = 0.0  # after which a client that was sent away may come back
    session: str = ""
    address: Address = ""  # where the session's other connections go, if elsewhere
    engine: EngineSettings | None = None  # of a lowered program

    def __post_init__(self) -> None:
        _make_printable(self)
        require(0 <= self.place <= 1 << 20, "place", "is out of range")
        require(0 <= self.retry_s <= 3600, "retry_s", "is out of range")
        is_named = self.verdict is not Verdict.WELCOME or _is_session(self.session)
        require(is_named, "session", "is no name of a session")
        if self.address:
            require(self.address.isprintable() and " " not in self.address, "address", "is none")
            split_address(self.address)


@tagged("word")
@dataclass(frozen=True, kw_only=True)
class Word:
    """A sign of life, or the end of a session: done, or why not."""

    is_end: bool = False
    reason: str = ""  # empty for a session that ended well

    def __post_init__(self) -> None:
        _make_printable(self)


Message = Hello | Join | Answer | Word


def encode(message: Message) -> bytes:
    """Return a message with its length."""
    content = json.dumps({"format": FORMAT, **codec.encode(message)}).encode()
    return _LENGTH.pack(len(content)) + content


def decode(document: Any) -> Message:
    """Return the message in a document of a peer, and believe nothing of it."""
    if not isinstance(document, dict):
        raise PartyError("received no message of mpcvit")
    if document.get("format") != FORMAT:
        raise PartyError("received a message of another version; install the same on both hosts")
    content = {name: value for name, value in document.items() if name != "format"}
    try:
        return codec.decode(cast(type[Message], Message), content, "message")
    except (UserError, ValueError, TypeError, ArithmeticError, RecursionError):
        raise PartyError("received a message that cannot be understood") from None


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Read the next message."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _MAX_BYTES:
        raise PartyError("received no message of mpcvit")
    try:
        document = json.loads(await reader.readexactly(length))
    except (ValueError, RecursionError):
        document = None
    return decode(document)


async def read_first(reader: asyncio.StreamReader) -> Hello | Join:
    """Read the message that begins a connection."""
    message = await read_message(reader)
    if not isinstance(message, Hello | Join):
        raise PartyError("received neither a hello nor the name of a session")
    return message


def _is_session(name: str) -> bool:
    return bool(_SESSION_NAME.fullmatch(name))


def _make_printable(message: Answer | Word) -> None:
    """Make a sentence fit to be printed, and short enough for the peer."""
    reason = message.reason[:_MAX_REASON]
    reason = reason if reason.isprintable() else repr(reason)[:_MAX_REASON]
    object.__setattr__(message, "reason", reason)
