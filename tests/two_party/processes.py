"""Finding the processes of a private run, by what the kernel tells of them."""

import os
import socket
from pathlib import Path


def children(word):
    """This process's children whose command line holds a word: process id by working folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and word in (entry / "cmdline").read_text():
                found[os.path.basename(os.readlink(entry / "cwd"))] = int(entry.name)
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return found


def is_listening(address):
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def working_below(folder):
    """Processes whose working folder lies below one."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd").startswith(f"{folder}/"):
                found.append(int(entry))
        except OSError:
            continue  # it has just ended
    return found
