"""How far some work is: what is being done, and how many of its steps are behind it."""

import time
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

BEGAN = time.monotonic()  # near enough: imports of larger packages come after this one
Progress = Callable[[str, int, int], None]
"""Takes the name of some work, the steps that are done, and all of them; 0: nobody knows."""


Item = TypeVar("Item")


def quiet(what: str, done: int, total: int) -> None:
    """Show nothing."""


def counted(what: str, items: Collection[Item], progress: Progress) -> Iterator[Item]:
    """Give items one by one, and report how many are done."""
    for done, item in enumerate(items):
        progress(what, done, len(items))
        yield item
    progress(what, len(items), len(items))
