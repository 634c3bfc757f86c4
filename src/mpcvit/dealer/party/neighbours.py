"""Who dials a port of this machine: this very process, or another."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc/self")
_LOCAL, _REMOTE, _INODE = 1, 2, 9  # columns of the kernel's table of connections


def is_of_this_process(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Return whether the far end of a connection over IPv4 is a socket of this process."""
    ends = [_written(peer), _written(here)]
    try:
        rows = (_PROC / "net" / "tcp").read_text(encoding="ascii").splitlines()
    except OSError:
        return True  # where nobody can tell, callers are held to what was agreed on, as always
    for row in rows:
        columns = row.split()
        if columns[_LOCAL : _REMOTE + 1] == ends:
            return f"socket:[{columns[_INODE]}]" in _open_files()
    return False


def _open_files() -> Iterator[str]:
    for handle in (_PROC / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed in the meantime
            yield os.readlink(handle)


def _written(end: tuple[str, int]) -> str:
    """Return an address as the kernel writes it.

    >>> _written(("127.0.0.1", 80))
    '0100007F:0050'
    """
    host, port = end
    return f"{socket.inet_aton(host)[::-1].hex().upper()}:{port:04X}"
