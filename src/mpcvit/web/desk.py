"""The desk: pictures that wait, run and have answers, whether or not a page looks at them.

Pictures are kept in memory files without a name, so that nothing is left of them when this
process ends. All that wait when a session begins are its images: their number is part of what
both sides agree on before anything is computed, and they share its set-up.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from mpcvit.artifacts.record import RunRecord
from mpcvit.data import decode_image
from mpcvit.errors import UserError
from mpcvit.secure.answers import ImageAnswer, RunResult, refusal

Classify = Callable[..., RunResult]
"""Takes pictures, `progress` and `answered`, as `mpcvit.predict` does."""

MOST_BYTES = 32_000_000  # of one picture's file
MOST_HELD_BYTES = 512_000_000  # of all that have no answer yet
MOST_PICTURES = 2_000
_MOST_NAME = 120
_MOST_SUFFIX = 16  # bytes; a longer one names no kind of picture, and may be too long for a disk
_STOP_S = 5.0


class PictureState(str, Enum):
    """The progress of a picture; one that failed may be asked for again."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    BROKEN = "broken"


@dataclass(kw_only=True)
class Picture:
    """A picture, and what is known of it."""

    number: int
    name: str
    state: PictureState
    words: str = ""
    seconds: float | None = None
    size: int = 0
    descriptor: int | None = field(default=None, repr=False)

    def release(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor, self.size = None, 0


class _StoppedError(UserError):
    """The desk is closed while a session runs."""


class Desk:
    """Takes pictures, and asks for their classes session by session in a thread of its own.

    `folder` is readable to this user alone; it holds links to the pictures' memory.
    """

    def __init__(self, classify: Classify, folder: Path) -> None:
        self._classify, self._folder = classify, folder
        self._pictures: list[Picture] = []
        self._records: list[RunRecord] = []
        self._phase: dict[str, str | int] | None = None
        self._changed = threading.Condition()
        self._decoding = threading.Lock()  # a large picture takes a gigabyte while it is read
        self._is_asked = self._is_closed = False
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()

    def add(self, name: str, content: bytes) -> Picture:
        """Take a picture; one that cannot be read is kept with the reason."""
        name = _printable(name)
        with self._changed:
            held = sum(picture.size for picture in self._pictures)
            if len(self._pictures) >= MOST_PICTURES or held + len(content) > MOST_HELD_BYTES:
                raise UserError("there are too many pictures; wait for answers, then start again")
            picture = Picture(
                number=len(self._pictures),
                name=name,
                state=PictureState.BROKEN,
                size=len(content),  # from now on, as others may be taken at the same time
            )
            self._pictures.append(picture)
        try:
            with self._decoding:
                decode_image(content, channels=3, where=name)
        except UserError as error:
            picture.words = str(error)
            picture.release()
            return picture
        descriptor = os.memfd_create("picture")
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        with self._changed:
            picture.descriptor = descriptor
            picture.state = PictureState.WAITING
        return picture

    def start(self) -> None:
        """Ask for the classes of all pictures that wait, and of those that failed."""
        with self._changed:
            for picture in self._pictures:
                if picture.state is PictureState.FAILED:
                    picture.state, picture.words = PictureState.WAITING, ""
            self._is_asked = True
            self._changed.notify()

    def show(self) -> dict[str, Any]:
        """Return all that a page shows."""
        with self._changed:
            return {
                "pictures": [
                    {
                        "number": picture.number,
                        "name": picture.name,
                        "state": picture.state.value,
                        "words": picture.words,
                        "seconds": picture.seconds,
                    }
                    for picture in self._pictures
                ],
                "phase": self._phase,
                "records": len(self._records),
            }

    def record(self) -> RunRecord | None:
        """Return the record of the last session that ended well."""
        with self._changed:
            return self._records[-1] if self._records else None

    def close(self) -> None:
        """End the session that runs, and forget all pictures."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._worker.join(_STOP_S)
        for picture in self._pictures:
            picture.release()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_asked or self._is_closed)
                if self._is_closed:
                    return
                own = [one for one in self._pictures if one.state is PictureState.WAITING]
                for picture in own:
                    picture.state = PictureState.RUNNING
                self._is_asked = False
            if own:
                self._run(own)

    def _run(self, own: list[Picture]) -> None:
        """Classify pictures in one session; a picture that the session refuses is left out."""
        links: list[Path] = []
        try:
            for picture in own:
                links.append(self._link(picture))
            result = self._classify(
                links,
                progress=self._progressed,
                answered=lambda index, answer: self._answered(own[index], answer),
            )
            self._finish(own, result)
        except _StoppedError:
            return
        except UserError as error:
            self._fail(own, links, str(error))
        except Exception as error:  # a page must not wait for ever, whatever happened
            self._fail(own, links, f"the session ended by {type(error).__name__}: {error}")
        finally:
            for link in links:
                link.unlink(missing_ok=True)
            with self._changed:
                self._phase = None

    def _link(self, picture: Picture) -> Path:
        """Return a path under which a process of this user can read a picture.

        No path is the beginning of another, so that a message names one of them alone.
        """
        suffix = Path(picture.name).suffix
        kept = suffix if len(os.fsencode(suffix)) <= _MOST_SUFFIX else ""
        link = self._folder / f"{picture.number:04}{kept}"
        link.symlink_to(f"/proc/{os.getpid()}/fd/{picture.descriptor}")
        return link

    def _progressed(self, what: str, done: int, total: int) -> None:
        with self._changed:
            if self._is_closed:
                raise _StoppedError("the page was closed by its command")
            self._phase = {"what": what, "done": done, "total": total}

    def _answered(self, picture: Picture, answer: ImageAnswer) -> None:
        with self._changed:
            picture.state = PictureState.DONE
            picture.words = answer.words if answer.trusted else refusal([picture.name])
            picture.release()

    def _finish(self, own: Sequence[Picture], result: RunResult) -> None:
        times = result.record.times.images
        with self._changed:
            self._records.append(result.record)
            for picture, (_, seconds) in zip(own, times, strict=True):
                picture.seconds = round(seconds, 3)

    def _fail(self, own: list[Picture], links: list[Path], message: str) -> None:
        """Give the reason to the pictures without an answer, or to those that are named."""
        named = {
            picture.number: line.replace(str(link), picture.name)
            for picture, link in zip(own, links, strict=False)  # not all, if one cannot be made
            for line in message.splitlines()
            if str(link) in line
        }
        with self._changed:
            for picture in own:
                if picture.state is not PictureState.RUNNING:
                    continue
                if not named:
                    picture.state, picture.words = PictureState.FAILED, message
                elif picture.number in named:
                    picture.state, picture.words = PictureState.BROKEN, named[picture.number]
                    picture.release()
                else:  # the next session has the others
                    picture.state, self._is_asked = PictureState.WAITING, True


def _printable(name: str) -> str:
    """Return the name of a file as it may be shown.

    >>> _printable("../a/scan\\n1.png"), _printable("")
    ('scan1.png', 'picture')
    """
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(character for character in last if character.isprintable())
    return kept[:_MOST_NAME] or "picture"
