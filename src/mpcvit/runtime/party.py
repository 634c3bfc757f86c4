"""One party as a process of its own: takes a job from its supervisor, and reports to it.

Supervisor and party share a socket. A first line of JSON tells the party what
it owns; once that is loaded, a second one tells where the parties meet, and
under which profile. Every event is a line too. A party whose supervisor is gone
ends itself, so that none is left over.
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
from typing import Any, BinaryIO

import numpy as np

from mpcvit.data import make_inputs
from mpcvit.dealer.errors import DealerError
from mpcvit.errors import UserError
from mpcvit.lowering.program import Model, load_model
from mpcvit.plain import from_plain
from mpcvit.profile import Profile
from mpcvit.run_record import Reveal
from mpcvit.runtime.card import ModelCard
from mpcvit.runtime.dealer_place import DealerPlace
from mpcvit.runtime.events import Event
from mpcvit.runtime.link import connect
from mpcvit.runtime.probe import measure_component
from mpcvit.runtime.roles import Role
from mpcvit.runtime.session import Report, classify, help_others, offer_model
from mpcvit.runtime.tls import Credentials


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    lines = control.makefile("rb")
    lock = threading.Lock()

    def report(event: Event) -> None:
        with lock:
            control.sendall(json.dumps(event).encode() + b"\n")

    try:
        job = _read_line(lines)
        model = _load_model(job)
        report({"event": "ready"})
        meeting = _read_line(lines)
        watcher = threading.Thread(target=_end_with_supervisor, args=(lines,), daemon=True)
        watcher.start()
        take_part(job, model, meeting, report)
        # the others' last receipts must find this process, or theirs would come down
        watcher.join()
    except UserError as error:
        of_dealer = isinstance(error, DealerError)
        report({"event": "error", "message": str(error), "of_dealer": of_dealer})
        _exit(2)
    except Exception as error:
        traceback.print_exc()  # into the party's own log
        report({"event": "error", "message": f"unexpected {type(error).__name__}: {error}"})
        _exit(1)
    _exit(0)


def take_part(
    job: Mapping[str, Any],
    model: Model | None,
    meeting: Mapping[str, Any],
    report: Report,
) -> None:
    """Do a role's part. A job holds the secrets' places of its own role, and no other's."""
    role = Role(job["role"])
    profile = from_plain(Profile, meeting["profile"], "profile")
    folder = job.get("tls")
    started = time.perf_counter()
    channel = connect(
        role,
        profile.protocol,
        {Role(name): address for name, address in meeting["addresses"].items()},
        profile.limits,
        meeting["session"],
        Credentials(folder=Path(folder)) if folder else None,
    )
    report({"event": "connected", "connect_s": time.perf_counter() - started})
    dealer = DealerPlace(**job["dealer"]) if "dealer" in job else None
    if "component" in job:
        measure_component(channel, profile, job["component"], job["shape"], report)
    elif model is not None:
        offer_model(channel, profile, model, report, dealer, Reveal(job["reveal"]))
    elif role is Role.DATA_OWNER:

        def make_images(card: ModelCard) -> np.ndarray:
            inputs = make_inputs(_read_images(job["images"]), card.model, card.data)
            report({"event": "inputs", "resized": inputs.resized})
            return inputs.images

        answers = classify(channel, profile, make_images, job["batch_size"], report, dealer)
        report({"event": "result", **answers.to_dict()})
    else:
        help_others(channel, profile, report)
    channel.part()
    report({"event": "done"})


def _load_model(job: Mapping[str, Any]) -> Model | None:
    return load_model(Path(job["model"])) if "model" in job else None


def _read_images(places: Any) -> Any:
    """A list of picture files, or one file with an array of pictures."""
    if isinstance(places, list):
        return places
    return np.load(places, allow_pickle=False)


def _read_line(lines: BinaryIO) -> dict[str, Any]:
    if not (line := lines.readline()).endswith(b"\n"):
        _exit(1)
    return json.loads(line)


def _end_with_supervisor(lines: BinaryIO) -> None:
    with contextlib.suppress(OSError):
        lines.read(1)
    _exit(1)


def _exit(code: int) -> None:
    """At once: a link whose peer is gone would otherwise wait, or bring the process down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
