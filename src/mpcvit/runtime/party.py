"""One party as a process of its own: takes a job from its supervisor, and reports to it.

Supervisor and party share a socket. The job is one line of JSON; so is every
event. A party whose supervisor is gone ends itself, so that none is left over.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.checkpoint import Checkpoint
from mpcvit.config import from_plain
from mpcvit.data import make_inputs
from mpcvit.errors import UserError
from mpcvit.profile import Profile
from mpcvit.runtime.card import ModelCard
from mpcvit.runtime.events import Event
from mpcvit.runtime.link import connect
from mpcvit.runtime.roles import Address, Role
from mpcvit.runtime.session import Report, classify, help_others, offer_model


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    job: dict[str, Any] = json.loads(_read_line(control))
    threading.Thread(target=_end_with_supervisor, args=(control,), daemon=True).start()
    lock = threading.Lock()

    def report(event: Event) -> None:
        with lock:
            control.sendall(json.dumps(event).encode() + b"\n")

    try:
        take_part(job, report)
    except UserError as error:
        report({"event": "error", "message": str(error)})
        _exit(2)
    except Exception as error:
        traceback.print_exc()  # into the party's own log
        report({"event": "error", "message": f"unexpected {type(error).__name__}: {error}"})
        _exit(1)
    _exit(0)


def take_part(job: Mapping[str, Any], report: Report) -> None:
    """Do a role's part. A job holds the secrets' places of its own role, and no other's."""
    role = Role(job["role"])
    profile = from_plain(Profile, job["profile"], "profile")
    addresses: dict[Role, Address] = {
        Role(name): address for name, address in job["addresses"].items()
    }
    checkpoint = Checkpoint.load(Path(job["model"])) if role is Role.MODEL_OWNER else None
    started = time.perf_counter()
    channel = connect(role, profile.protocol, addresses, profile.limits, job["session"])
    report({"event": "connected", "connect_s": time.perf_counter() - started})
    if checkpoint is not None:
        offer_model(channel, profile, checkpoint, report)
    elif role is Role.DATA_OWNER:

        def make_images(card: ModelCard) -> np.ndarray:
            inputs = make_inputs(_read_images(job["images"]), card.model, card.data)
            report({"event": "inputs", "resized": inputs.resized})
            return inputs.images

        logits = classify(channel, profile, make_images, job["batch_size"], report)
        report({"event": "result", "logits": logits.tolist()})
    else:
        help_others(channel, profile, report)
    channel.close()
    report({"event": "done"})


def _read_images(places: Any) -> Any:
    """A list of picture files, or one file with an array of pictures."""
    if isinstance(places, list):
        return places
    return np.load(places, allow_pickle=False)


def _read_line(control: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        if not (piece := control.recv(1 << 16)):
            _exit(1)
        line += piece
    return line


def _end_with_supervisor(control: socket.socket) -> None:
    with contextlib.suppress(OSError):
        control.recv(1)
    _exit(1)


def _exit(code: int) -> None:
    """At once: a link whose peer is gone would otherwise wait, or bring the process down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
