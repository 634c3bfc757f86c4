"""One party as a process of its own: takes a job from its supervisor, and reports to it.

Supervisor and party share a socket. A first line of JSON names what the party
owns. Once that is loaded, a second one names where the parties meet, and under
which profile. Every event is a line too. A party whose supervisor is gone ends
itself, so that none is left over.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

import numpy as np

from mpcvit.codec import decode
from mpcvit.dealer.errors import DealerError
from mpcvit.errors import UserError
from mpcvit.hosts.credentials import Credentials, protect_memory
from mpcvit.lowering.program import load_model
from mpcvit.secure.parties.events import (
    Connected,
    Done,
    Event,
    Failed,
    Ready,
    Report,
    to_line,
)
from mpcvit.secure.parties.job import (
    Meeting,
    OwnFunction,
    OwnImages,
    OwnModel,
    OwnNothing,
    PartyJob,
)
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.protocol import images_of, run_data_owner, run_model_owner, run_third_party
from mpcvit.secure.spu.link import Channel, connect

Message = TypeVar("Message")


def main() -> None:
    """Do a role's part, under a supervisor at the other end of a socket."""
    protect_memory()
    control = socket.socket(fileno=int(sys.argv[1]))
    lines = control.makefile("rb")
    lock = threading.Lock()
    if (job := _read(PartyJob, lines)) is None:
        _exit(1)

    def report(event: Event) -> None:
        try:
            with lock:
                control.sendall(to_line(event))
        except ConnectionError:  # a supervisor may be gone before anything watches it
            _abandon(job.scratch)

    try:
        take_part = _load(job)
        report(Ready())
        if (meeting := _read(Meeting, lines)) is None:
            _abandon(job.scratch)
        watcher = threading.Thread(
            target=_end_with_supervisor, args=(lines, job.scratch), daemon=True
        )
        watcher.start()
        channel = _connect(job.role, meeting, report)
        take_part(channel, meeting, report)
        channel.part()
        report(Done())
        # the others' last receipts must find this process and its link, or theirs would come down
        watcher.join()
    except UserError as error:
        report(Failed(message=str(error), of_dealer=isinstance(error, DealerError)))
        _exit(2)
    except Exception as error:
        traceback.print_exc()  # into the party's own log
        report(Failed(message=f"unexpected {type(error).__name__}: {error}"))
        _exit(1)
    _exit(0)


def _load(job: PartyJob) -> Callable[[Channel, Meeting, Report], None]:
    """Load what a party owns; return how it takes part with that."""
    match job.own:
        case OwnModel(path=path, reveal=reveal):
            model = load_model(path)

            def take_part(channel: Channel, meeting: Meeting, report: Report) -> None:
                run_model_owner(
                    *(channel, meeting.profile, model, report, job.dealer),
                    reveal=reveal,
                    announced=meeting.announced,
                )

        case OwnImages() as own:
            pictures = _load_images(own)

            def take_part(channel: Channel, meeting: Meeting, report: Report) -> None:
                images = images_of(pictures, None, report)
                run_data_owner(channel, meeting.profile, images, own.batch_size, report, job.dealer)

        case OwnFunction(name=name, model=shape):
            from mpcvit.secure.probe import measure_function_here

            def take_part(channel: Channel, meeting: Meeting, report: Report) -> None:
                measure_function_here(channel, meeting.profile, name, shape, report, job.dealer)

        case OwnNothing():

            def take_part(channel: Channel, meeting: Meeting, report: Report) -> None:
                run_third_party(channel, meeting.profile, report)

    return take_part


def _connect(role: Role, meeting: Meeting, report: Report) -> Channel:
    started = time.perf_counter()
    channel = connect(
        role,
        meeting.profile.protocol,
        meeting.addresses,
        meeting.profile.limits,
        meeting.session,
        None if meeting.tls is None else Credentials(folder=meeting.tls),
    )
    report(Connected(connect_s=time.perf_counter() - started))
    return channel


def _load_images(own: OwnImages) -> Sequence[Path] | np.ndarray:
    if own.descriptor is None:
        return own.files
    return np.load(f"/proc/self/fd/{own.descriptor}", allow_pickle=False)


def _read(kind: type[Message], lines: BinaryIO) -> Message | None:
    """Return the supervisor's next message, or None if the supervisor is gone."""
    line = lines.readline()
    return decode(kind, json.loads(line), "message") if line.endswith(b"\n") else None


def _end_with_supervisor(lines: BinaryIO, scratch: Path) -> None:
    with contextlib.suppress(OSError):
        lines.read(1)
    _abandon(scratch)


def _abandon(scratch: Path) -> NoReturn:
    """End without a supervisor, and leave nothing of the run on disk."""
    shutil.rmtree(scratch, ignore_errors=True)
    _exit(1)


def _exit(code: int) -> NoReturn:
    """End at once: a link whose peer is gone would otherwise wait, or bring the process down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
