"""As much of HTTP/1.1 as parties, dealers and SPU's client speak with each other."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from mpcvit.dealer.errors import DealerError

_MOST_LINE = 1 << 12
_MOST_HEADERS = 64
_PHRASES = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 503: "Unavailable"}


@dataclass(frozen=True, kw_only=True)
class Message:
    """A request with its whole body."""

    method: str
    path: str
    body: bytes


def read_message(stream: BinaryIO, most_bytes: int) -> Message | None:
    """The next request; None where there is none any more."""
    if not (line := stream.readline(_MOST_LINE)):
        return None
    words = line.split()
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not line.endswith(b"\n"):
        raise DealerError("this is no request")
    length = _read_length(stream)
    if length > most_bytes:
        raise DealerError(f"a request of {length} bytes is too big")
    body = stream.read(length)
    if len(body) < length:
        return None
    return Message(method=words[0].decode("latin-1"), path=words[1].decode("latin-1"), body=body)


def _read_length(stream: BinaryIO) -> int:
    length = 0
    for _ in range(_MOST_HEADERS):
        line = stream.readline(_MOST_LINE)
        if line in (b"\r\n", b"\n"):
            return length
        name, _, value = line.partition(b":")
        match name.strip().lower():
            case b"content-length" if value.strip().isdigit():
                length = int(value)
            case b"content-length" | b"transfer-encoding":
                raise DealerError("a request must tell its length")
    raise DealerError("this is no request")


def send_head(line: socket.socket, status: int, length: int, *, close: bool = True) -> None:
    connection = "close" if close else "keep-alive"
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Length: {length}\r\n"
        f"Content-Type: application/octet-stream\r\nConnection: {connection}\r\n\r\n"
    )
    line.sendall(head.encode())


def send(
    line: socket.socket,
    status: int,
    pieces: Iterable[bytes | memoryview],
    *,
    close: bool = True,
) -> None:
    pieces = list(pieces)
    send_head(line, status, sum(map(len, pieces)), close=close)
    for piece in pieces:
        line.sendall(piece)
