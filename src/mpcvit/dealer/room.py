"""Room: the connections of a dealer's process, and how long each may stay.

A deadline covers a whole request, from the first byte of TLS to the last of its
body, so that slow bytes do not prolong it. When too many connections have not
finished their request, the oldest one goes: no number of idle connections keeps
a new one out.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mpcvit.dealer.errors import LaterError

_MOST_ASKING = 64
_MOST_ANSWERED = 64
_MOST_ANSWERED_EACH = 16  # of one certificate


class Room:
    """Holds connections to their deadlines; `sweep` must be called often."""

    def __init__(self, request_s: float) -> None:
        self._request_s = request_s
        self._lock = threading.Lock()
        self._asking: dict[socket.socket, float] = {}  # by age, with deadlines
        self._answered: dict[socket.socket, tuple[str, float]] = {}  # certificates, deadlines
        self._dropped: set[socket.socket] = set()

    def enter(self, connection: socket.socket) -> None:
        """Let a connection ask."""
        with self._lock:
            while len(self._asking) >= _MOST_ASKING:
                self._drop_oldest()
            self._asking[connection] = time.monotonic() + self._request_s

    def leave(self, connection: socket.socket) -> bool:
        """Forget a connection; tells whether it was hung up on."""
        with self._lock:
            self._asking.pop(connection, None)
            was_dropped = connection in self._dropped
            self._dropped.discard(connection)
            return was_dropped

    def drop_oldest(self) -> None:
        """Hang up on the connection that has been asking for longest."""
        with self._lock:
            self._drop_oldest()

    def sweep(self) -> None:
        """Hang up on connections that have had their time."""
        now = time.monotonic()
        with self._lock:
            for connection, deadline in list(self._asking.items()):
                if deadline < now:
                    del self._asking[connection]
                    self._hang_up(connection)
            for connection, (_, deadline) in self._answered.items():
                if deadline < now:
                    self._hang_up(connection)  # its thread takes it out

    @contextmanager
    def answering(
        self, connection: socket.socket, certificate: str, limit_s: float
    ) -> Iterator[None]:
        """Keep a connection whose request is whole, until it is answered or the time is over."""
        with self._lock:
            if self._asking.pop(connection, None) is None:
                raise TimeoutError  # it was hung up on
            own = sum(name == certificate for name, _ in self._answered.values())
            if own >= _MOST_ANSWERED_EACH or len(self._answered) >= _MOST_ANSWERED:
                raise LaterError("too many requests are being answered at the moment")
            self._answered[connection] = (certificate, time.monotonic() + limit_s)
        try:
            yield
        finally:
            with self._lock:
                del self._answered[connection]

    def prolong(self, connection: socket.socket, limit_s: float) -> None:
        """Give a long answer the time that it needs."""
        with self._lock:
            certificate, _ = self._answered[connection]
            self._answered[connection] = (certificate, time.monotonic() + limit_s)

    def _drop_oldest(self) -> None:
        if self._asking:
            oldest = next(iter(self._asking))
            del self._asking[oldest]
            self._hang_up(oldest)

    def _hang_up(self, connection: socket.socket) -> None:
        """Wake the thread that waits for a connection. It closes it."""
        self._dropped.add(connection)
        with contextlib.suppress(OSError):
            # not that of TLS, which would change what the other thread uses
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
