"""What processes take, as the kernel counts it; and, as a program, what reading jobs takes.

python -m tests.unit.dealer.counting ours|naive < a JSON list of jobs in base64
"""

import base64
import contextlib
import json
import os
import sys
import time
import zlib
from pathlib import Path

from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.jobs import Job
from mpcvit.dealer.limits import MOST_STEPS
from mpcvit.dealer.script import Step


def forget_peak(pid):
    """From here on the peak of memory counts anew. Returns what is taken now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _memory(pid, "VmRSS")


def peak(pid):
    return _memory(pid, "VmHWM")


def _memory(pid, what):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return 1024 * int(line.split()[1])
    raise AssertionError(what)


def cpu_seconds(pid):
    """Of all threads, also those that ended; in hundredths."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def family(pid):
    """A process and its children."""
    found = [pid]
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += map(int, file.read_text().split())
    return found


def read_naively(content):
    """Unpack, decode, and only then check."""
    for script, _ in json.loads(content)["plan"]:
        steps = tuple(map(Step.from_row, json.loads(zlib.decompress(base64.b64decode(script)))))
        if len(steps) > MOST_STEPS:
            raise DealerError("too many steps")


def main():
    read = {"ours": Job.from_bytes, "naive": read_naively}[sys.argv[1]]
    for text in json.load(sys.stdin):
        content = base64.b64decode(text)
        before, started, ended = forget_peak("self"), time.process_time(), "taken"
        try:
            read(content)
        except DealerError as error:
            ended = str(error)
        print(json.dumps([ended, time.process_time() - started, peak("self") - before]))


if __name__ == "__main__":
    main()
