"""A door in a thread of its own, and those who come to it."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time

from mpcvit.errors import UserError
from mpcvit.hosts.credentials import Credentials
from mpcvit.hosts.door import Door, DoorLimits
from mpcvit.hosts.peer import read_allowed

SOON_S = 2.0  # within which an allowed client must be in
HELLO, WELCOME = b"hello", b"in"
NONSENSE = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"


async def read_hello(reader):
    if (first := await reader.readexactly(len(HELLO))) != HELLO:
        raise UserError("received no hello")
    return first


async def greet(guest):
    """Let a guest stay until it hangs up."""
    guest.writer.write(WELCOME)
    with contextlib.suppress(OSError):
        await guest.reader.read()


def door_of(listener, folder, note, limits, **changes):
    credentials = Credentials(folder=folder)
    context, allowed = credentials.listening_context(), read_allowed(credentials.allowed)
    return Door(
        listener,
        **{
            "context": lambda: context,
            "admit": lambda peer: "" if peer.fingerprint in allowed else "not on the list",
            "read_first": read_hello,
            "note": note,
            "limits": limits,
            **changes,
        },
    )


class Entrance:
    """Runs a door in a thread of its own."""

    def __init__(self, certs, limits=None, receive=greet, **changes):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.notes, self.complaints = [], []
        self.door = door_of(
            self.listener,
            certs / "server",
            changes.pop("note", lambda address, reason: self.notes.append(reason)),
            limits or DoorLimits(),
            **changes,
        )
        self._receive, self._stop = receive, threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))

    async def _run(self):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, found: self.complaints.append(found))
        running = asyncio.ensure_future(self.door.run(self._receive))
        while not self._stop.is_set():
            assert not running.done()
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(0.05)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        self._stop.set()
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()
        self.listener.close()
        if kind is None:
            assert not self.complaints
            assert not self.door._strangers
            assert not self.door._guests

    def wait_for(self, condition, within_s=5.0):
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, (self.door.counts, self.notes)
            time.sleep(0.01)


def stranger(port, content=b"", host="127.0.0.1"):
    """Open a connection from an address of this machine, and say something."""
    line = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(host, 0))
    line.sendall(content)
    return line


def come_in(port, folder, first=HELLO, trusted=None):
    """Connect once; return the line of a client that is in."""
    context = Credentials(folder=folder).dialling_context()
    if trusted:
        context.load_verify_locations(trusted)
    plain = socket.create_connection(("127.0.0.1", port), timeout=SOON_S)
    try:
        line = context.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise
    try:
        line.sendall(first)
        if line.recv(len(WELCOME)) != WELCOME:
            raise ConnectionError("was sent away")
    except BaseException:
        line.close()
        raise
    return line


def come_in_soon(port, folder):
    """Connect, and again when the line breaks, as clients do; return how long it took."""
    started = time.monotonic()
    while True:
        try:
            come_in(port, folder).close()
            break
        except OSError:
            assert time.monotonic() - started < SOON_S
            time.sleep(0.05)
    assert time.monotonic() - started < SOON_S


def is_open(line):
    """Return whether the other end has not hung up yet."""
    line.setblocking(False)
    try:
        return line.recv(1) != b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False


@contextlib.contextmanager
def closing(lines):
    try:
        yield lines
    finally:
        for line in lines:
            line.close()
