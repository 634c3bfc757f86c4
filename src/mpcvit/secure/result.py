"""What the data owner learns of its images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcvit.artifacts.record import Reveal, RunRecord
from mpcvit.errors import UserError

REVEALED = {
    Reveal.CLASS: "the class alone",
    Reveal.TOP5: "the five likeliest classes",
    Reveal.ROUNDED: "rounded logits",
    Reveal.LOGITS: "the logits",
}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the data owner learns of its images, a row for each."""

    reveal: Reveal
    values: tuple[tuple[float, ...], ...] | None  # float32 logits, as they are or rounded
    chosen: tuple[tuple[bool, ...], ...]  # by class: the likeliest, or the five likeliest
    trusted: tuple[bool, ...]
    close: tuple[bool, ...]  # another class may be as likely

    @classmethod
    def join(cls, parts: Sequence["Answers"]) -> "Answers":
        """Return the answers of several batches as one."""

        def joined(name: str) -> tuple[Any, ...]:
            return tuple(row for part in parts for row in getattr(part, name))

        return cls(
            reveal=parts[0].reveal,
            values=None if parts[0].values is None else joined("values"),
            **{name: joined(name) for name in ("chosen", "trusted", "close")},
        )


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What the data owner learns, and what it cost."""

    answers: Answers
    classes: tuple[str, ...]
    record: RunRecord
    resized: int  # images that were not of the model's size

    @property
    def reveal(self) -> Reveal:
        return self.answers.reveal

    @property
    def logits(self) -> np.ndarray:
        """Float32 [image, class], where the model owner reveals them."""
        if self.reveal is not Reveal.LOGITS or self.answers.values is None:
            raise UserError(
                f"the model owner reveals {REVEALED[self.reveal]}, and no logits; "
                'it would have to choose "logits"'
            )
        self.require_trusted()
        return np.array(self.answers.values, np.float32)

    @property
    def rounded(self) -> np.ndarray | None:
        """Float32 [image, class] logits to the nearest whole number, where these are revealed."""
        is_rounded = self.reveal is Reveal.ROUNDED
        return np.array(self.answers.values, np.float32) if is_rounded else None

    @property
    def predictions(self) -> tuple[str, ...]:
        """The likeliest class of each image; an error where an answer cannot be trusted."""
        if self.reveal is Reveal.TOP5:
            raise UserError("the model owner reveals sets of five classes; see `likeliest`")
        self.require_trusted()
        return tuple(names[0] for names in self.likeliest)

    @property
    def likeliest(self) -> tuple[tuple[str, ...], ...]:
        """Of each image what is revealed, a class or a set; nothing where it is refused."""
        return tuple(
            tuple(self.classes[index] for index in np.flatnonzero(chosen)) if trusted else ()
            for chosen, trusted in zip(self.answers.chosen, self.answers.trusted, strict=True)
        )

    @property
    def refused(self) -> tuple[int, ...]:
        """Images, from zero, whose answers cannot be trusted."""
        return tuple(int(index) for index in np.flatnonzero(np.logical_not(self.answers.trusted)))

    @property
    def close(self) -> tuple[int, ...]:
        """The indices of images whose class is close: the network itself may prefer another."""
        return tuple(int(index) for index in np.flatnonzero(self.answers.close))

    def require_trusted(self) -> None:
        """Raise if an answer cannot be trusted."""
        if self.refused:
            raise RefusedError(refusal([f"image {index}" for index in self.refused]))


class RefusedError(UserError):
    """An answer that the program cannot vouch for."""


def refusal(images: Sequence[str]) -> str:
    """Say of images that there is no answer.

    >>> print(refusal(["image 3"]))
    no answer for image 3: values left the ranges that the program was made for, so that its \
class may be another than the network's; run the network as it was trained, or lower it again \
with images of this kind
    """
    return (
        f"no answer for {', '.join(images)}: values left the ranges that the program was made "
        "for, so that its class may be another than the network's; run the network as it was "
        "trained, or lower it again with images of this kind"
    )
