"""What every source of images offers, whatever lies on disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np

from mpcvit.artifacts.config import DataSource

SplitName = Literal["train", "test"]


class Example(NamedTuple):
    """A labelled picture, and where it was found, for messages."""

    image: np.ndarray  # uint8 [height, width, channel]
    label: int
    where: str


@dataclass(frozen=True, kw_only=True)
class Examples:
    """An open split: its class names now, its pictures one by one."""

    classes: tuple[str, ...]
    count: int
    stream: Iterator[Example]


class Source(Protocol):
    """Images on disk that are known but not yet read."""

    @property
    def kind(self) -> DataSource: ...

    @property
    def root(self) -> Path:
        """What the user named, for messages and for telling sources apart."""
        ...

    def files(self) -> tuple[Path, ...]:
        """Return every file whose change would change what `open_split` gives."""
        ...

    def open_split(self, split: SplitName, channels: int) -> Examples: ...
