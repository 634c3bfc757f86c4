"""How far some work is: what is being done, and how many of its steps are behind it."""

import time
from collections.abc import Callable

BEGAN = time.monotonic()  # near enough: imports of larger packages come after this one
Progress = Callable[[str, int, int], None]
"""Takes the name of some work, the steps that are done, and all of them; 0: nobody knows."""


def quiet(what: str, done: int, total: int) -> None:
    """Show nothing."""
