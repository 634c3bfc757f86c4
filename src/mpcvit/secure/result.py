"""What the data owner learns of its images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpcvit.artifacts.record import Reveal, RunRecord
from mpcvit.errors import UserError, shown

REVEALED = {
    Reveal.CLASS: "the class alone",
    Reveal.TOP5: "the five likeliest classes",
    Reveal.ROUNDED: "rounded logits",
    Reveal.LOGITS: "the logits",
}


LIKELIEST = 5  # classes that are named where logits are revealed


@dataclass(frozen=True, kw_only=True)
class BatchAnswers:
    """The answers that the data owner learns of a batch, a row for each image."""

    values: tuple[tuple[float, ...], ...] | None  # float32 logits, as they are or rounded
    chosen: tuple[tuple[bool, ...], ...]  # by class: the likeliest, or the five likeliest
    trusted: tuple[bool, ...]
    close: tuple[bool, ...]  # another class may be as likely


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """The data owner's knowledge of the model that answers."""

    digest: str  # of the public half
    classes: tuple[str, ...]
    reveal: Reveal

    def answers(self, batch: BatchAnswers) -> list["ImageAnswer"]:
        """Return the answers for a batch, one by one."""
        return [
            ImageAnswer(
                model=self,
                values=None if batch.values is None else batch.values[row],
                chosen=tuple(int(index) for index in np.flatnonzero(batch.chosen[row])),
                trusted=batch.trusted[row],
                close=batch.close[row],
            )
            for row in range(len(batch.trusted))
        ]


@dataclass(frozen=True, kw_only=True)
class ImageAnswer:
    """The answer that the data owner learns of one image."""

    model: KnownModel
    values: tuple[float, ...] | None  # float32 logits, as they are or rounded
    chosen: tuple[int, ...]  # the indices of the likeliest class, or of the five likeliest
    trusted: bool
    close: bool  # another class may be as likely

    @property
    def likeliest(self) -> tuple[str, ...]:
        """What is revealed, a class or a set; nothing if the answer is refused."""
        return tuple(self.model.classes[index] for index in self.chosen) if self.trusted else ()

    @property
    def logits(self) -> tuple[float, ...] | None:
        """Each logit as it was computed, if these are revealed."""
        return self.values if self.model.reveal is Reveal.LOGITS else None

    @property
    def rounded(self) -> tuple[int, ...] | None:
        """Each logit to the nearest whole number, if these are revealed."""
        if self.model.reveal is not Reveal.ROUNDED or self.values is None:
            return None
        return tuple(int(value) for value in self.values)

    @property
    def words(self) -> str:
        """What is known of the image, and no more. The model owner wrote the names of classes."""
        if not self.trusted:
            return "no answer"
        if self.logits is not None:
            likeliest = self.probabilities(LIKELIEST)
            said = ", ".join(f"{shown(name)} {100 * odds:.1f} %" for name, odds in likeliest)
        else:
            said = ", ".join(map(shown, self.likeliest))
        if self.rounded is not None:
            said += f" (rounded logits {' '.join(map(str, self.rounded))})"
        if self.close:
            said += "; too close to be sure, as lowering may have changed which class is first"
        return said

    def probabilities(self, count: int) -> list[tuple[str, float]]:
        """Return the likeliest classes, with the softmax of the logits."""
        odds = np.array(self.logits, np.float64)
        odds = np.exp(odds - odds.max())
        odds /= odds.sum()
        order = odds.argsort()[::-1][:count]
        return [(self.model.classes[index], float(odds[index])) for index in order]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The answers that the data owner learns, and their cost."""

    answers: tuple[ImageAnswer, ...]
    model: KnownModel
    record: RunRecord
    resized: int  # images that were not of the model's size

    @property
    def classes(self) -> tuple[str, ...]:
        return self.model.classes

    @property
    def reveal(self) -> Reveal:
        return self.model.reveal

    @property
    def logits(self) -> np.ndarray:
        """Float32 [image, class], where the model owner reveals them."""
        if self.reveal is not Reveal.LOGITS:
            raise UserError(
                f"the model owner reveals {REVEALED[self.reveal]}, and no logits; "
                'it would have to choose "logits"'
            )
        self.require_trusted()
        return np.array([answer.values for answer in self.answers], np.float32)

    @property
    def rounded(self) -> np.ndarray | None:
        """Float32 [image, class] logits to the nearest whole number, where these are revealed."""
        if self.reveal is not Reveal.ROUNDED:
            return None
        return np.array([answer.values for answer in self.answers], np.float32)

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
        return tuple(answer.likeliest for answer in self.answers)

    @property
    def refused(self) -> tuple[int, ...]:
        """Images, from zero, whose answers cannot be trusted."""
        return tuple(index for index, answer in enumerate(self.answers) if not answer.trusted)

    @property
    def close(self) -> tuple[int, ...]:
        """The indices of images whose class is close: the network itself may prefer another."""
        return tuple(index for index, answer in enumerate(self.answers) if answer.close)

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
