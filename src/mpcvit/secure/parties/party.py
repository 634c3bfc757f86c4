"""One party as a process of its own: takes a job from its supervisor, and reports to it.

Supervisor and party share a socket. A first line of JSON tells the party what
it owns; once that is loaded, a second one tells where the parties meet, and
under which profile. Every event is a line too. A party whose supervisor is gone
ends itself, so that none is left over.
"""

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import Reveal
from mpcvit.codec import decode
from mpcvit.data import make_inputs
from mpcvit.dealer.errors import DealerError
from mpcvit.errors import UserError
from mpcvit.hosts.credentials import Credentials
from mpcvit.hosts.hardening import protect_memory
from mpcvit.lowering.program import Model, load_model
from mpcvit.secure.card import ModelCard
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.parties.events import Event
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.probe import measure_component
from mpcvit.secure.protocol import Report, Request, classify, help_others, offer_model
from mpcvit.secure.spu.link import Channel, connect


def main() -> None:
    protect_memory()
    control = socket.socket(fileno=int(sys.argv[1]))
    lines = control.makefile("rb")
    lock = threading.Lock()

    def report(event: Event) -> None:
        with lock:
            control.sendall(json.dumps(event).encode() + b"\n")

    try:
        if (job := _read_line(lines)) is None:
            _exit(1)
        scratch = Path(job["scratch"])
        model, images = _load_model(job), _load_images(job)
        report({"event": "ready"})
        if (meeting := _read_line(lines)) is None:
            _abandon(scratch)
        watcher = threading.Thread(target=_end_with_supervisor, args=(lines, scratch), daemon=True)
        watcher.start()
        link = take_part(job, model, images, meeting, report)
        # the others' last receipts must find this process and its link, or theirs would come down
        watcher.join()
        del link
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
    images: Any,
    meeting: Mapping[str, Any],
    report: Report,
) -> Channel:
    """Do a role's part. A job holds the secrets' places of its own role, and no other's.

    The link ends when nobody holds the channel any more.
    """
    role = Role(job["role"])
    profile = decode(Profile, meeting["profile"], "profile")
    started = time.perf_counter()
    channel = connect(
        role,
        profile.protocol,
        {Role(name): address for name, address in meeting["addresses"].items()},
        profile.limits,
        meeting["session"],
        Credentials(folder=Path(meeting["tls"])) if "tls" in meeting else None,
    )
    report({"event": "connected", "connect_s": time.perf_counter() - started})
    dealer = DealerEndpoint(**job["dealer"]) if "dealer" in job else None
    if "component" in job:
        measure_component(channel, profile, job["component"], job["shape"], report)
    elif model is not None:
        announced = None
        if "images" in meeting:
            announced = Request(images=meeting["images"], batch_size=meeting["batch_size"])
        reveal = Reveal(job["reveal"])
        offer_model(channel, profile, model, report, dealer, reveal=reveal, announced=announced)
    elif role is Role.DATA_OWNER:

        def make_images(card: ModelCard) -> np.ndarray:
            inputs = make_inputs(images, card.model, card.data)
            report({"event": "inputs", "resized": inputs.resized})
            return inputs.images

        answers = classify(channel, profile, make_images, job["batch_size"], report, dealer)
        report({"event": "result", **answers.to_dict()})
    else:
        help_others(channel, profile, report)
    channel.part()
    report({"event": "done"})
    return channel


def _load_model(job: Mapping[str, Any]) -> Model | None:
    return load_model(Path(job["model"])) if "model" in job else None


def _load_images(job: Mapping[str, Any]) -> Any:
    """Return a list of picture files, or an array of pictures."""
    source = job.get("images")
    return np.load(source, allow_pickle=False) if isinstance(source, str) else source


def _read_line(lines: BinaryIO) -> dict[str, Any] | None:
    """Return the supervisor's next message, or None if the supervisor is gone."""
    line = lines.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _end_with_supervisor(lines: BinaryIO, scratch: Path) -> None:
    with contextlib.suppress(OSError):
        lines.read(1)
    _abandon(scratch)


def _abandon(scratch: Path) -> NoReturn:
    """End without a supervisor, and leave nothing of the run on disk."""
    shutil.rmtree(scratch, ignore_errors=True)
    _exit(1)


def _exit(code: int) -> NoReturn:
    """At once: a link whose peer is gone would otherwise wait, or bring the process down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
