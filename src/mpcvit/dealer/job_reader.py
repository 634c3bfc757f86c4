"""A process that reads what parties send, with little memory and little time.

It has neither the dealer's key nor its records. Whatever a job does to it, the
dealer refuses the job and starts another reader.
"""

import base64
import contextlib
import json
import os
import resource
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.jobs import Job, JobOutline
from mpcvit.dealer.limits import MOST_REQUEST_BYTES

_EXTRA_BYTES = 64 << 20  # beyond what the reader takes once it is loaded
_CPU_S = 2  # for a job; the largest that is allowed takes a quarter of a second
_PATIENCE_S = 20.0  # on a machine that is busy
_LENGTH = struct.Struct(">I")


class Line:
    """Lets one thread in at a time, in the order in which they came.

    A lock would let in whichever thread the system wakes first.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._came = 0
        self._left = 0

    @property
    def waiting(self) -> int:
        """How many threads wait behind the one that is in."""
        with self._changed:
            return max(0, self._came - self._left - 1)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        with self._changed:
            mine, self._came = self._came, self._came + 1
            self._changed.wait_for(lambda: self._left == mine)
        try:
            yield
        finally:
            with self._changed:
                self._left += 1
                self._changed.notify_all()


class JobReader:
    """Reads jobs one after another, in a process that ends at the latest with this one.

    Certificates take turns: of each, one job at a time waits for the process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line = Line()
        self._line_of: dict[str, Line] = {}

    def start(self) -> None:
        """Have a process ready before it is needed."""
        with self._line.turn():
            self._started()

    def read(self, content: bytes, sender: str) -> JobOutline:
        """Return the outline of a job that is well-formed and within the limits.

        `sender` is the fingerprint of the certificate that sent it.
        """
        senders = self._line_of.setdefault(sender, Line())
        with senders.turn(), self._line.turn():
            try:
                answer = self._ask(self._started(), content)
            except OSError:
                self._stop()
                self._started()  # for the next job
                raise DealerError("the job takes too long to be read, or too much memory") from None
        if "refused" in answer:
            raise DealerError(answer["refused"])
        seeds = tuple(base64.b64decode(seed) for seed in answer.pop("seeds"))
        return JobOutline(document=content, seeds=seeds, **answer)

    def close(self) -> None:
        with self._line.turn():
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "mpcvit.dealer.job_reader"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the dealer
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise LaterError("the dealer cannot read jobs at the moment") from error
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], content: bytes) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_LENGTH.pack(len(content)) + content)
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _PATIENCE_S)[0]:
            raise TimeoutError
        answer = _receive(process.stdout)
        if answer is None:
            raise ConnectionResetError
        return json.loads(answer)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what was written and never read
                    assert pipe is not None
                    pipe.close()


def _receive(stream: IO[bytes]) -> bytes | None:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    return content if len(content) == length else None


def _answer(content: bytes) -> dict[str, Any]:
    try:
        if len(content) > MOST_REQUEST_BYTES:
            raise DealerError(f"a job of {len(content)} bytes is too big")
        job = Job.from_bytes(content)
    except DealerError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "the job takes too much memory to be read"}
    return {
        "digest": job.digest,
        "inferences": job.inferences,
        "seeds": [base64.b64encode(seed).decode() for seed in job.seeds],
        "key": job.key[:100],
        "spu": job.spu[:100],
    }


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time() -> None:
    """Allow the next job its seconds. The kernel ends a process that takes more."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + _CPU_S, resource.RLIM_INFINITY))


def main() -> None:
    """Read jobs from standard input until it ends."""
    _limit_memory()
    _limit_time()
    while (content := _receive(sys.stdin.buffer)) is not None:
        answer = json.dumps(_answer(content)).encode()
        sys.stdout.buffer.write(_LENGTH.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()
        _limit_time()


if __name__ == "__main__":
    main()
