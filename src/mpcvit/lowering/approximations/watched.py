"""An approximation that reports what it is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import Array


@dataclass(frozen=True)
class Watched:
    """An approximation whose every array is passed to `note` first."""

    approximation: Any
    note: Callable[[Array], None]

    def __call__(self, x: Array) -> Array:
        self.note(x)
        return self.approximation(x)
