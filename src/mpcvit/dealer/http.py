"""As much of HTTP/1.1 as parties, dealers and SPU's client speak with each other."""

import asyncio
from dataclasses import dataclass
from typing import BinaryIO

from mpcvit.dealer.errors import DealerError

_END = b"\r\n\r\n"
_MAX_HEAD = 1 << 13
_PHRASES = {200: "OK", 403: "Forbidden", 503: "Unavailable"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request with its whole body."""

    method: str
    path: str
    body: bytes


async def read_request(reader: asyncio.StreamReader, max_bytes: int) -> Request:
    """Read a request of a peer. Its length is checked before its body is read."""
    try:
        head = await reader.readuntil(_END)
    except asyncio.LimitOverrunError:
        raise DealerError("this is no request") from None
    method, path, length = _parse(head, max_bytes)
    return Request(method=method, path=path, body=await reader.readexactly(length))


def read_local_request(stream: BinaryIO, max_bytes: int) -> Request | None:
    """Read the next request of this machine's SPU; return None if there is none any more."""
    head = b""
    while not head.endswith(_END):
        if not (line := stream.readline(_MAX_HEAD)):
            return None
        head += line
        if len(head) > _MAX_HEAD:
            raise DealerError("this is no request")
    method, path, length = _parse(head, max_bytes)
    body = stream.read(length)
    return Request(method=method, path=path, body=body) if len(body) == length else None


def _parse(head: bytes, max_bytes: int) -> tuple[str, str, int]:
    """Return a request's method, path and length.

    >>> _parse(b"POST /jobs HTTP/1.1\\r\\nContent-Length: 5\\r\\n\\r\\n", 10)
    ('POST', '/jobs', 5)
    """
    first, *lines = head.removesuffix(_END).split(b"\r\n")
    words = first.split()
    if len(head) > _MAX_HEAD or len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise DealerError("this is no request")
    length = 0
    for line in lines:
        name, _, value = line.partition(b":")
        match name.strip().lower():
            case b"content-length" if value.strip().isdigit() and len(value) < 20:
                length = int(value)
            case b"content-length" | b"transfer-encoding":
                raise DealerError("a request must say its length")
    if length > max_bytes:
        raise DealerError(f"a request of {length} bytes is too big")
    return words[0].decode("latin-1"), words[1].decode("latin-1"), length


def head_of(status: int, length: int, *, close: bool = True) -> bytes:
    """Return what precedes the body of an answer."""
    connection = "close" if close else "keep-alive"
    return (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Length: {length}\r\n"
        f"Content-Type: application/octet-stream\r\nConnection: {connection}\r\n\r\n"
    ).encode()


def answer(status: int, body: bytes) -> bytes:
    """Return a whole answer, after which the connection ends."""
    return head_of(status, len(body)) + body
