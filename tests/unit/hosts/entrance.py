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

PATIENCE_S = 60.0  # of tests, on a busy machine; the door's own time is theirs to let pass
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
    """Runs a door in a thread of its own, where time passes only when a test says so."""

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
        self._receive, self._now = receive, time.monotonic()
        self._is_running = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda _, found: self.complaints.append(found))
        self._loop.time = lambda: self._now
        running = asyncio.ensure_future(self.door.run(self._receive))
        self._is_running.set()
        await self._stop.wait()
        assert not running.done()
        del self._loop.time  # the loop's own clock again
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(0.05)

    def let_pass(self, seconds):
        self._now += seconds
        self._loop.call_soon_threadsafe(lambda: None)  # it looks at its clock

    def let_arrival_pass(self):
        """Let the time for a first message pass, once TLS has shown who is there."""
        self.wait_for(lambda: self.door._guests)
        self.let_pass(DoorLimits().arrival_s)

    def __enter__(self):
        self._thread.start()
        assert self._is_running.wait(PATIENCE_S)
        return self

    def __exit__(self, kind, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=PATIENCE_S)
        assert not self._thread.is_alive()
        self.listener.close()
        if kind is None:
            assert not self.complaints
            assert not self.door._strangers
            assert not self.door._guests

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (self.door.counts, self.notes)
            time.sleep(0.01)


def stranger(port, content=b"", host="127.0.0.1"):
    """Open a connection from an address of this machine, and say something."""
    address = ("127.0.0.1", port)
    line = socket.create_connection(address, timeout=PATIENCE_S, source_address=(host, 0))
    try:
        line.sendall(content)
    except BaseException:
        line.close()
        raise
    return line


def come_in(port, folder, first=HELLO, trusted=None, meanwhile=lambda: None):
    """Connect once; return the line of a client that is in."""
    context = Credentials(folder=folder).dialling_context()
    if trusted:
        context.load_verify_locations(trusted)
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    try:
        line = context.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise
    try:
        line.sendall(first)
        meanwhile()
        if line.recv(len(WELCOME)) != WELCOME:
            raise ConnectionError("was sent away")
    except BaseException:
        line.close()
        raise
    return line


def come_in_at_last(port, folder):
    """Connect, and again when the line breaks, as clients do."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            come_in(port, folder).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


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
