"""A file of answers: grows image by image, so that an interrupted run can go on.

The first line says what was asked, and which model answered. Each further line is one
picture's answer, under the SHA-256 of the picture's file. Only the user who asked can read
the file. A line that a killed process or a full disk has cut is left out.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpcvit.artifacts.provenance import content_digest
from mpcvit.codec import decode, encode, register
from mpcvit.errors import UserError
from mpcvit.secure.result import ImageAnswer, KnownModel
from mpcvit.storage import read_json, state_folder, write_text


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
