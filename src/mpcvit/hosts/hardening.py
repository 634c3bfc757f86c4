"""Keeps the memory of a process that holds secrets from reaching the disk or another process."""

import ctypes
import resource

_PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """Switch off core dumps, and let no other process of this user read this one's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # the limit alone does not stop a core pattern that pipes dumps into a program
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
