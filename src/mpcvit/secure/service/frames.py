"""Checks what a peer sends towards the local SPU, frame by frame.

SPU's own port is never exposed, because it trusts what arrives there. The tunnel lets a
frame pass only if an honest SPU could have sent it in this session:

    "PRPC", body bytes, meta bytes (big-endian), then meta and payload as protocol buffers

A request carries a message, or a chunk of one, of the peer's rank. An answer carries a
status. A field that is unknown, repeated or out of bounds is refused, because SPU might
read it in another way than this file.
"""

import re
import struct
from dataclasses import dataclass

from mpcvit.secure.errors import PartyError

HEAD = struct.Struct(">4sII")
_MAGIC = b"PRPC"
_SERVICE, _METHOD = b"org.interconnection.link.ReceiverService", b"Push"
_MAX_META_BYTES = 256
_MAX_ANSWER_BYTES = 1 << 12  # a status, and a sentence
_MAX_KEY_BYTES = 256
CHUNK_BYTES = 1 << 20  # SPU cuts messages into chunks of this size
_MAX_REQUEST_BYTES = CHUNK_BYTES + _MAX_KEY_BYTES + 64
_VARINT, _BYTES = 0, 2  # wire types
_MAX_NUMBER = 1 << 64
_NUMBER = re.compile(rb"[0-9]{1,20}")

Field = int | memoryview


class FrameError(PartyError):
    """A frame that no honest SPU sends."""


@dataclass(frozen=True, kw_only=True)
class FrameLimits:
    """The limits of what a peer may make the local SPU hold."""

    message_bytes: int = 1 << 31
    unread_bytes: int = 1 << 32  # of messages that the local SPU has not read yet
    unread_messages: int = 1024  # an honest SPU waits for receipts after ten


def split_head(head: bytes) -> tuple[int, int]:
    """Return how many bytes follow a frame's head, and how many of them are meta."""
    magic, body, meta = HEAD.unpack(head)
    if magic != _MAGIC:
        raise FrameError("the peer sent what is no frame of SPU")
    if meta > min(body, _MAX_META_BYTES) or body - meta > _MAX_REQUEST_BYTES:
        raise FrameError(f"the peer sent a frame of {body} bytes with {meta} bytes of meta")
    return body, meta


class FrameChecker:
    """Remembers the messages of one session, over all of its connections."""

    def __init__(self, *, peer_rank: int, session: str, limits: FrameLimits | None = None) -> None:
        self._rank = peer_rank
        # a numbered message of the session, the greeting of a link, a receipt, or its end
        self._key = re.compile(
            rb"(?:(%b[ -~]*)|connect_%d|ACK|FIN)\x01\x02([0-9]{0,20})"
            % (re.escape(session.encode()), peer_rank)
        )
        self._limits = limits or FrameLimits()
        self._unread: dict[int, tuple[bytes, int]] = {}  # key and length by number
        self._unread_bytes = 0

    def check_request(self, body: bytes | memoryview, meta_bytes: int) -> None:
        """Refuse a frame on a connection that the peer's SPU dialled."""
        view = memoryview(body)
        meta = _fields(view[:meta_bytes], {1: _BYTES, 3: _VARINT, 4: _VARINT})
        _require(meta.get(3, 0) == 0, "compressed")
        call = _fields(_bytes(meta, 1), {1: _BYTES, 2: _BYTES, 3: _VARINT})
        _require(_bytes(call, 1) == _SERVICE and _bytes(call, 2) == _METHOD, "for another service")
        push = _fields(view[meta_bytes:], {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _VARINT, 5: _BYTES})
        _require(push.get(1, 0) == self._rank, "of another rank")
        key, value = bytes(_bytes(push, 2)), push.get(3, b"")
        assert not isinstance(value, int)
        found = self._key.fullmatch(key) if len(key) <= _MAX_KEY_BYTES else None
        kind = push.get(4, 0)
        _require(found is not None and kind in (0, 1), "of another kind")
        _require(len(value) <= CHUNK_BYTES, "with too many bytes")
        _require((kind == 1) == (5 in push), "that is half a chunk")
        assert found is not None
        length = len(value)
        if kind == 1:
            chunk = _fields(_bytes(push, 5), {1: _VARINT, 2: _VARINT})
            length = _number(chunk, 1)
            _check_chunk(length, _number(chunk, 2), len(value))
        if found[1] is None:
            _require(kind == 0 and length <= _MAX_KEY_BYTES, "with too many bytes")
        else:
            _require(found[2] != b"", "without a number")
            self._count(int(found[2]), key, length)

    def note_sent(self, body: bytes | memoryview, meta_bytes: int) -> None:
        """Take the local SPU's receipts: what it has read no longer counts."""
        push = _fields(
            memoryview(body)[meta_bytes:],
            {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _VARINT, 5: _BYTES},
        )
        if bytes(_bytes(push, 2)).startswith(b"ACK\x01"):
            number = bytes(_bytes(push, 3))
            _require(_NUMBER.fullmatch(number) is not None, "that is no receipt")
            _, length = self._unread.pop(int(number), (b"", 0))
            self._unread_bytes -= length

    def check_answer(self, body: bytes | memoryview, meta_bytes: int) -> None:
        """Refuse a frame on a connection that the local SPU dialled."""
        view = memoryview(body)
        _require(len(view) - meta_bytes <= _MAX_ANSWER_BYTES, "with too many bytes")
        meta = _fields(view[:meta_bytes], {2: _BYTES, 3: _VARINT, 4: _VARINT})
        _require(meta.get(3, 0) == 0, "compressed")
        call = _fields(_bytes(meta, 2), {1: _VARINT, 2: _BYTES})
        if call.get(1, 0) != 0:  # the call failed, as it does where a peer is about to end
            _require(len(view) == meta_bytes, "with more than an error")
            return
        status = _fields(view[meta_bytes:], {1: _BYTES})
        _fields(_bytes(status, 1), {1: _VARINT, 2: _BYTES})

    def _count(self, number: int, key: bytes, length: int) -> None:
        """Hold a message to one key and one length, and all messages to the limits."""
        _require(length <= self._limits.message_bytes, f"of a message of {length} bytes")
        if number not in self._unread:
            self._unread[number] = key, length
            self._unread_bytes += length
            _require(
                self._unread_bytes <= self._limits.unread_bytes
                and len(self._unread) <= self._limits.unread_messages,
                "of one message too many",
            )
        _require(self._unread[number] == (key, length), "of a message of another length")


def _check_chunk(length: int, offset: int, size: int) -> None:
    _require(size > 0 and offset + size <= length, "outside of its message")
    # SPU cuts at whole chunks, so that two chunks never overlap
    whole = offset % CHUNK_BYTES == 0 and size in (CHUNK_BYTES, length - offset)
    _require(whole, "cut elsewhere than SPU cuts")


def _fields(view: memoryview | bytes, known: dict[int, int]) -> dict[int, Field]:
    """Read a protocol buffer whose fields are known, each at most once."""
    view = memoryview(view)
    found: dict[int, Field] = {}
    place = 0
    while place < len(view):
        tag, place = _varint(view, place)
        number, wire = tag >> 3, tag & 7
        _require(known.get(number) == wire and number not in found, "with an unknown field")
        value, place = _varint(view, place)
        if wire == _VARINT:
            found[number] = value
        else:
            _require(value <= len(view) - place, "that ends too early")
            found[number] = view[place : place + value]
            place += value
    return found


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        _require(place < len(view) and shift < 70, "that ends too early")
        byte = view[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            _require(value < _MAX_NUMBER, "with a number that is too big")
            _require(byte != 0 or shift == 7, "with a number that begins with zeros")
            return value, place


def _bytes(fields: dict[int, Field], number: int) -> memoryview:
    value = fields.get(number)
    if not isinstance(value, memoryview):
        raise FrameError("the peer sent a frame that lacks a field")
    return value


def _number(fields: dict[int, Field], number: int) -> int:
    value = fields.get(number, 0)
    assert isinstance(value, int), "declared as a number"
    return value


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise FrameError(f"the peer sent a frame {what}")
