"""Parties as threads of one process, joined in memory."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpcvit.artifacts.profile import Profile
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.spu.engine import profile_log
from mpcvit.secure.spu.link import Channel, connect_in_memory


def run_in_threads(profile: Profile, take_part: Callable[[Channel], Any]) -> dict[Role, Any]:
    """Call a function once per role, each in a thread with a channel of its own."""
    profile_log()  # before any thread compiles: SPU's log must not be set up while in use
    results: dict[Role, Any] = {}
    failures: list[BaseException] = []

    def act(port: Any) -> None:
        try:
            results[port.role] = take_part(port.open())
        except BaseException as error:  # whatever it is, the caller's thread raises it
            failures.append(error)

    ports = connect_in_memory(profile.protocol, profile.limits)
    threads = [threading.Thread(target=act, args=(port,), daemon=True) for port in ports]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and not failures:
            for thread in threads:
                thread.join(timeout=0.05)
    finally:
        _remove_masks()
    if failures:
        raise failures[0]
    return results


def _remove_masks() -> None:
    """Reused masks lie where the process runs; a party's own process has a folder for that."""
    for folder in Path.cwd().glob(f"BeaverCache.{os.getpid()}.*"):
        shutil.rmtree(folder, ignore_errors=True)
