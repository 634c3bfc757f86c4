"""The messages between client and server, beside SPU's own.

Every connection to the server's port begins with one message of the client:

    Hello   on the control connection: terms, and how many images the client brings
    Join    on a connection for SPU's bytes: the session, and which SPU dials on it

The server answers a Hello with Answers: a place in the queue, a session, or a refusal. The
control connection then stays open as long as the session. Both ends send a Word every few
seconds, and at the end why the session ended. No secret and no share passes here.

A message is a length of four bytes and that much JSON.
"""

import asyncio
import json
import re
import struct
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from mpcvit import codec
from mpcvit.errors import UserError
from mpcvit.lowering.engine import EngineChoice
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.agreement import Terms
from mpcvit.secure.parties.roles import Address, split_address

FORMAT = "mpcvit-control/1"
ALIVE_EVERY_S = 5.0
SILENCE_S = 20.0  # without a Word, the other end is gone
START = b"!"  # tells a waiting connection that SPU's bytes follow
_MAX_BYTES = 1 << 14
_MAX_REASON = 400
_MAX_TERMS = 64
_LENGTH = struct.Struct(">I")
_SESSION_NAME = re.compile("[0-9a-f]{32}")


class Way(str, Enum):
    """Which SPU dials on a connection."""

    FORTH = "forth"  # the client's
    BACK = "back"  # the server's


class Verdict(str, Enum):
    """How the server answers a hello."""

    WAITING = "waiting"
    WELCOME = "welcome"
    BUSY = "busy"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first message of a client that wants a session."""

    terms: Terms
    images: int
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Join:
    """The first message on a connection that belongs to a session."""

    session: str
    way: Way


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The server's answer to a hello."""

    verdict: Verdict
    reason: str = ""
    place: int = 0  # in the queue; the next one is 1
    retry_s: float = 0.0  # after which a client that was sent away may come back
    session: str = ""
    address: Address = ""  # where the session's other connections go, if elsewhere
    engine: EngineChoice | None = None  # of a lowered program


@dataclass(frozen=True, kw_only=True)
class Word:
    """A sign of life, or the end of a session: done, or why not."""

    is_end: bool = False
    reason: str = ""  # empty for a session that ended well


def encode(message: Hello | Join | Answer | Word) -> bytes:
    """Return a message with its length."""
    document = {"format": FORMAT, "kind": type(message).__name__, **_plain(message)}
    content = json.dumps(document).encode()
    return _LENGTH.pack(len(content)) + content


def _plain(message: Hello | Join | Answer | Word) -> dict[str, Any]:
    if isinstance(message, Hello):
        return {**asdict(message), "terms": dict(message.terms)}
    document = codec.encode(message)
    if isinstance(message, Answer | Word):
        document["reason"] = message.reason[:_MAX_REASON]  # a peer takes no longer one
    return document


async def read_document(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Read the next message, whatever its kind."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _MAX_BYTES:
        raise PartyError("received no message of mpcvit")
    try:
        document = json.loads(await reader.readexactly(length))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise PartyError("received no message of mpcvit")
    if document.get("format") != FORMAT:
        raise PartyError("received a message of another version; install the same on both hosts")
    return document


async def read_first(reader: asyncio.StreamReader) -> Hello | Join:
    """Read the message that begins a connection."""
    document = await read_document(reader)
    match document.get("kind"):
        case "Hello":
            return _hello(document)
        case "Join":
            return _join(document)
    raise PartyError("received neither a hello nor the name of a session")


def decode_answer(document: dict[str, Any]) -> Answer:
    """Decode the server's answer, and believe nothing of it."""
    engine, address = document.get("engine"), document.get("address", "")
    try:
        verdict = Verdict(document.get("verdict"))
        if engine is not None:
            engine = codec.decode(EngineChoice, engine, "engine")
        if address != "":
            _require_address(address)
    except (ValueError, TypeError, ArithmeticError, RecursionError, UserError):
        raise PartyError("the answer cannot be understood") from None
    session = document.get("session")
    if verdict is Verdict.WELCOME and not _is_session(session):
        raise PartyError("the answer cannot be understood")
    return Answer(
        verdict=verdict,
        reason=_reason(document),
        place=_whole(document.get("place", 0), 1 << 20),
        retry_s=float(_whole(int(_number(document.get("retry_s", 0))), 3600)),
        session=str(session or ""),
        address=address,
        engine=engine,
    )


def decode_word(document: dict[str, Any]) -> Word:
    """Decode what a peer says during a session."""
    if document.get("kind") != "Word":
        raise PartyError("received a message out of turn")
    return Word(is_end=document.get("is_end") is True, reason=_reason(document))


def _hello(document: dict[str, Any]) -> Hello:
    terms = document.get("terms")
    if not isinstance(terms, dict) or len(terms) > _MAX_TERMS or not _is_flat(terms):
        raise PartyError("the hello cannot be understood")
    images, batch_size = document.get("images"), document.get("batch_size")
    return Hello(
        terms=terms,
        images=_whole(images, 1 << 30, least=1),
        batch_size=_whole(batch_size, 1 << 30, least=1),
    )


def _join(document: dict[str, Any]) -> Join:
    session = document.get("session")
    try:
        way = Way(document.get("way"))
    except (ValueError, TypeError):
        way = None
    if way is None or not _is_session(session):
        raise PartyError("the name of the session cannot be understood")
    return Join(session=str(session), way=way)


def _is_flat(terms: dict[str, Any]) -> bool:
    """Whether no value is a list or a section, which could be nested deeply."""
    return not any(isinstance(value, list | dict) for value in terms.values())


def _require_address(value: Any) -> None:
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        raise UserError("the address cannot be dialled")
    split_address(value)


def _is_session(value: Any) -> bool:
    return isinstance(value, str) and bool(_SESSION_NAME.fullmatch(value))


def _whole(value: Any, most: int, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise PartyError("a number in the message is out of range")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 3600:
        raise PartyError("a number in the message is out of range")
    return value


def _reason(document: dict[str, Any]) -> str:
    """Return a peer's sentence, fit to be printed."""
    reason = document.get("reason", "")
    if not isinstance(reason, str):
        raise PartyError("a sentence in the message cannot be understood")
    reason = reason[:_MAX_REASON]
    return reason if reason.isprintable() else repr(reason)
