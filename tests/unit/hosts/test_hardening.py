"""A process that holds secrets leaves no copy of its memory."""

import subprocess
import sys

CHILD = """
import ctypes, resource, sys
def look():
    return [*resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)]
before = look()
from mpcvit.hosts.credentials import protect_memory
protect_memory()
print(before[2], *look())
"""


def test_no_core_dumps_and_not_dumpable():
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, timeout=60
    )
    dumpable_before, soft, hard, dumpable = map(int, done.stdout.split())
    assert dumpable_before == 1
    assert (soft, hard, dumpable) == (0, 0, 0)
