"""Finding the processes of a private run, by what the kernel tells of them."""

import os
import socket
from pathlib import Path


def children(word):
    """This process's children of a module: process id by working folder, or by module."""
    return {
        os.path.basename(folder) or module: process
        for process, parent, module, folder in _modules()
        if parent == os.getpid() and word in module
    }


def _modules():
    """Process, parent, module and folder of whatever runs as a module of this package.

    A party's folder is its last argument: a protected process does not show where it works.
    """
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_text().split("\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            module = next((word for word in words if word.startswith("mpcvit.secure.")), "")
            folder = words[words.index(module) + 2] if module.endswith(".party") else ""
        except (OSError, ValueError, IndexError):
            continue  # it has just ended, or just begun
        if module:
            yield int(entry.name), parent, module, folder


def is_listening(address):
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def working_below(folder):
    """Parties whose working folder lies below one."""
    return [process for process, _, _, place in _modules() if place.startswith(f"{folder}/")]


def ports_of(process):
    """The ports on which a process listens, by the kernel's tables."""
    own = _sockets(process)
    if not own:
        return []
    found = []
    for table in ("tcp", "tcp6"):
        for line in _table(process, table):
            words = line.split()
            if words[3] == "0A" and words[9] in own:
                found.append(int(words[1].rpartition(":")[2], 16))
    return found


def sockets_of(process):
    """The names of the unix sockets on which a process listens."""
    own = _sockets(process)
    words = [line.split() for line in _table(process, "unix")]
    listens = "00010000"  # the flag of sockets that accept connections
    return [
        os.path.basename(word[7])
        for word in words
        if len(word) > 7 and word[3] == listens and word[6] in own
    ]


def _table(process, name):
    """The kernel's sockets of a kind; none if the process has just ended."""
    try:
        return Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _sockets(process):
    """The inodes of a process's sockets. Descriptors may close while they are listed."""
    found = set()
    try:
        descriptors = os.listdir(f"/proc/{process}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return found  # the process has just ended, and listens on nothing
    for entry in descriptors:
        try:
            target = os.readlink(f"/proc/{process}/fd/{entry}")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found
