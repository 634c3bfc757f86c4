"""All parties as threads of one process: quick, exact in bytes and exchanges, and not private."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.lowering.program import Model
from mpcvit.profile import Profile
from mpcvit.runtime.events import Event, Journal
from mpcvit.runtime.link import Channel, connect_in_memory
from mpcvit.runtime.roles import Role
from mpcvit.runtime.session import MakeImages, classify, help_others, offer_model
from mpcvit.runtime.trace import profile_log

one_at_a_time = threading.Lock()  # SPU's log belongs to the process


def simulate(
    model: Model,
    make_images: MakeImages,
    profile: Profile,
    *,
    batch_size: int,
    journal: Journal,
) -> np.ndarray:
    """Logits, by the code that parties in processes run."""

    def take_part(channel: Channel) -> Any:
        def report(event: Event) -> None:
            journal.add(channel.role, event)

        report({"event": "connected", "connect_s": 0.0})
        match channel.role:
            case Role.MODEL_OWNER:
                return offer_model(channel, profile, model, report)
            case Role.DATA_OWNER:
                return classify(channel, profile, make_images, batch_size, report)
            case Role.HELPER:
                return help_others(channel, profile, report)

    with one_at_a_time:
        return run_in_threads(profile, take_part)[Role.DATA_OWNER]


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
