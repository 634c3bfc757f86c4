"""Answers: what the data owner learns of its images, and a file that keeps it.

The file grows image by image, so that an interrupted run can go on. The first line says
what was asked, and which model answered. Each further line is one picture's answer, under
the SHA-256 of the picture's file. Only the user who asked can read the file. A line that a
killed process or a full disk has cut is left out.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.artifacts.provenance import content_digest
from mpcvit.artifacts.record import Reveal, RunRecord
from mpcvit.codec import decode, encode, register
from mpcvit.errors import UserError, shown
from mpcvit.storage import read_json, state_folder, write_text

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


@register("mpcvit-answers/1", "file of answers")
@dataclass(frozen=True, kw_only=True)
class _Heading:
    """The line that all answers of a file have in common."""

    asked: dict[str, str]
    model: KnownModel


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One picture's answer."""

    picture: str  # the digest of its content
    image: str
    values: tuple[float, ...] | None
    chosen: tuple[int, ...]
    trusted: bool
    close: bool


class AnswerFile:
    """The answers that are known, by the digest of the picture, and the file that keeps them.

    `asked` says whom was asked and how. Answers to something else are never mixed in.
    `sources` are files with answers of earlier commands, the latest first.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any], sources: Sequence[Path] = ()) -> None:
        self.path = path
        self.known: dict[str, ImageAnswer] = {}
        self.left_over = 0  # answers of interrupted commands to the same pictures, not resumed
        self._asked = {name: json.dumps(encode(value)) for name, value in asked.items()}
        self._model: KnownModel | None = None
        self._lines: list[_Line] = []
        self._held: dict[Path, set[str]] = {}  # pictures by source
        self._is_written = False
        for source in sources:
            self._read(source)

    @classmethod
    def aside(
        cls, asked: Mapping[str, Any], digests: Sequence[str], *, resume: bool
    ) -> "AnswerFile":
        """Open the file of a command that names none, which is kept until that ends well.

        What is resumed may be of several commands: a folder of pictures may have changed since.
        """
        folder = state_folder() / "answers"
        about, which = content_digest(encode(dict(asked))), content_digest(list(digests))
        path, known = folder / f"{about}-{which}.jsonl", folder.glob(f"{about}-*.jsonl")
        sources = sorted(known, key=_changed, reverse=True)
        if resume:
            file = cls(path, asked, sources)
            if not file.known.keys() & set(digests):
                raise UserError(
                    f"there is nothing to resume: {folder} has no answer to an image; leave out "
                    "--resume"
                )
            return file
        file = cls(path, asked)
        with contextlib.suppress(UserError):  # what cannot be read is no answer
            earlier = cls(path, asked, sources)
            file._held = earlier._held
            file.left_over = len(earlier.known.keys() & set(digests))
        return file

    def forget(self, digests: Collection[str]) -> None:
        """Remove the file, and sources that hold answers to these pictures alone."""
        used = [source for source, held in self._held.items() if held <= set(digests)]
        for path in (self.path, *used):
            with contextlib.suppress(OSError):
                path.unlink()

    def require_same(self, model: KnownModel) -> None:
        """Raise if another model gave the answers that are known."""
        if self._model not in (None, model):
            raise UserError(
                f"the model is another than the one whose answers are in {self.path}; leave out "
                "--resume to ask for all images again"
            )

    def add(self, digest: str, image: Path, answer: ImageAnswer) -> None:
        """Keep an answer; it is on disk when this returns."""
        self.require_same(answer.model)
        self._model = answer.model
        fields = {name: getattr(answer, name) for name in ("values", "chosen", "trusted", "close")}
        line = _Line(picture=digest, image=str(image), **fields)
        self.known[digest] = answer
        self._lines.append(line)
        if self._is_written and self.path.exists():
            self._append(line)
        else:
            heading = _Heading(asked=self._asked, model=answer.model)
            texts = [_text(part) for part in (heading, *self._lines)]
            write_text(self.path, "".join(texts), private=True)
            self._is_written = True

    def _append(self, line: _Line) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_text(line))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._is_written = False  # the next one writes all again
            raise UserError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _read(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UserError(
                f"there is nothing to resume: no answers are in {path}; leave out --resume"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
        first, *lines = text.split("\n")
        heading = decode(_Heading, read_json(first, str(path)), str(path))
        for name, value in self._asked.items():
            if heading.asked.get(name) != value:
                raise UserError(
                    f"{path} holds answers of another {name}; leave out --resume to ask for all "
                    "images again"
                )
        if self._model not in (None, heading.model):
            return  # older, and of a model that has changed since
        self._model, held = heading.model, self._held.setdefault(path, set())
        for number, text in enumerate(lines[:-1], start=2):  # a whole line ends with a line break
            where = f"{path}, line {number}"
            line = decode(_Line, read_json(text, where), where)
            if any(not 0 <= index < len(heading.model.classes) for index in line.chosen):
                raise UserError(f"{where} names a class that the model does not have")
            held.add(line.picture)
            if line.picture in self.known:
                continue
            self._lines.append(line)
            self.known[line.picture] = ImageAnswer(
                model=heading.model,
                values=line.values,
                chosen=line.chosen,
                trusted=line.trusted,
                close=line.close,
            )


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its command has just ended
        return 0.0


def digest_of(picture: Path) -> str:
    """Return the digest of a picture's file."""
    try:
        return hashlib.sha256(picture.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {picture}: {error.strerror or error}") from error


def _text(part: _Heading | _Line) -> str:
    return json.dumps(encode(part)) + "\n"
