"""Sockets by address: "host:port", or "unix:PATH" for one in a folder of this machine.

The kernel limits the path of a socket to 107 bytes. A folder's descriptor stands for the
folder here, so that only the file's name counts.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpcvit.secure.parties.roles import Address, split_address

UNIX = "unix:"


def unix_address(path: Path) -> Address:
    return f"{UNIX}{path}"


def dial(address: Address, *, patient: bool = True) -> socket.socket:
    """Return a connection to an address; raise OSError where nobody listens.

    Unless it is patient, a unix socket whose queue is full also raises, at once.
    """
    if not address.startswith(UNIX):
        connection = socket.create_connection(split_address(address))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(patient)
    try:
        with _short(Path(address.removeprefix(UNIX))) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def listen(address: Address) -> socket.socket:
    """Return a listening socket; a unix one that its owner alone may dial."""
    if not address.startswith(UNIX):
        host, port = address.rsplit(":", 1)  # port 0 is any free one
        return socket.create_server((host, int(port)))
    listener = socket.socket(socket.AF_UNIX)
    with _short(Path(address.removeprefix(UNIX))) as path:
        listener.bind(path)
        os.chmod(path, 0o600)
    listener.listen()
    return listener


@contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
