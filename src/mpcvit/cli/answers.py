"""The answers of private runs: printed and kept as they come, with the cost at the end."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import Reveal, RunRecord
from mpcvit.cli.show import print_json, print_pairs
from mpcvit.codec import encode, save
from mpcvit.errors import UserError, shown
from mpcvit.storage import require_writable

if TYPE_CHECKING:
    from mpcvit.secure.answers import ImageAnswer, RunResult

AnswersOption = Annotated[
    Path | None,
    typer.Option(
        "--answers",
        metavar="FILE",
        help="File that keeps each answer as soon as it is there (JSON lines), readable to this "
        "user alone. Unless given, answers are kept aside until the command ends well.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Ask only for the images that an interrupted command has no answer for."
    ),
]
Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="With --json: a line of JSON for each image as soon as its answer is there, and one "
        "with the record at the end.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Stop at a picture of a folder that cannot be read."),
]
_MOST_ROWS = 10  # images, or batches of them, with seconds of their own


@dataclass(frozen=True, kw_only=True)
class Output:
    """The places where a command's answers and its record go."""

    out: Path | None
    answers: Path | None
    resume: bool
    as_json: bool
    stream: bool
    strict: bool = False

    def check(self) -> None:
        """Refuse before the run what would fail after it."""
        if self.stream and not self.as_json:
            raise UserError("--stream needs --json; answers are printed one by one anyway")
        for path in (self.out, self.answers):
            if path is not None:
                require_writable(path)
        if self.answers is not None and self.answers.exists() and not self.resume:
            raise UserError(f"{self.answers} exists already; add --resume, or name another file")


def answer_pictures(
    images: list[Path],
    asked: Mapping[str, Any],
    profile: Profile,
    output: Output,
    classify: "Callable[..., RunResult]",
) -> None:
    """Classify pictures, print each answer when it is there, and the cost in the end.

    `images` are files, and folders whose broken pictures are left out and listed.
    `asked` says whom is asked and how: only answers to the same are resumed. `classify`
    takes pictures, where to show progress, and where to put each answer.
    """
    from mpcvit.data import list_skipped, sift_pictures
    from mpcvit.report.live import counting, tell
    from mpcvit.secure.answers import AnswerFile, RefusedError, digest_of, refusal

    output.check()
    with counting() as progress:
        pictures, skipped = sift_pictures(images, strict=output.strict, progress=progress)
    for sentence in skipped:
        tell(f"note: left out: {sentence}")
    digests = [digest_of(picture) for picture in pictures]
    if output.answers is None:
        file = AnswerFile.aside(asked, digests, resume=output.resume)
    else:
        file = AnswerFile(output.answers, asked, [output.answers] if output.resume else [])
    if file.left_over:
        kept = f"{file.left_over} of {len(pictures)} images have an answer"
        tell(f"note: {kept} of an interrupted command, which --resume would keep")
    answers = {
        index: file.known[digest] for index, digest in enumerate(digests) if digest in file.known
    }
    missing = [index for index in range(len(pictures)) if index not in answers]
    failed_writes: list[UserError] = []
    not_kept: list[int] = []

    def answered(place: int, answer: "ImageAnswer") -> None:
        index = missing[place]
        file.require_same(answer.model)
        answers[index] = answer
        try:
            _print_answer(pictures[index], answer, output)
        finally:
            try:
                _require_unchanged(pictures[index], digests[index])
                keep(index, answer)
            except UserError as error:  # the answers on the screen are worth more
                failed_writes.append(error)

    def keep(index: int, answer: "ImageAnswer") -> None:
        try:
            file.add(digests[index], pictures[index], answer)
        except UserError as error:
            if output.answers is not None:
                raise
            if not not_kept:  # nobody asked for that file
                tell(f"note: {error}, so --resume will not find these answers")
            not_kept.append(index)

    for index, answer in answers.items():
        _print_answer(pictures[index], answer, output)
    if kept := len(answers):
        were = "1 answer was" if kept == 1 else f"{kept} answers were"
        tell(f"note: {were} there already")
    result = None
    with _telling_what_is_kept(file.path, answers, len(pictures)):
        while missing and result is None:
            asked_for = [pictures[index] for index in missing]
            try:
                with counting() as progress:
                    result = classify(asked_for, progress=progress, answered=answered)
            except UserError as error:
                unfit = _find_unfit(error, asked_for)
                if output.strict or not unfit or unfit.keys() & set(images):
                    raise
                for sentence in unfit.values():
                    tell(f"note: left out: {sentence}")
                skipped += tuple(unfit.values())
                missing[:] = [index for index in missing if pictures[index] not in unfit]
        if not answers:
            raise UserError(f"the model takes none of the pictures: {list_skipped(skipped)}")
        rows = [(pictures[index], answer) for index, answer in sorted(answers.items())]
        try:
            if output.as_json:
                _print_document(rows, result, output, skipped)
            elif result is not None:
                _print_cost(result, profile.trust)
            sys.stdout.flush()  # what could not be printed is still kept
        finally:
            if output.out is not None and result is not None:
                save(output.out, result.record)
    if output.answers is None:
        file.forget(digests)
    if failed_writes:
        raise failed_writes[0]
    if refused := [str(picture) for picture, answer in rows if not answer.trusted]:
        raise RefusedError(refusal(refused))


def _find_unfit(error: UserError, pictures: list[Path]) -> dict[Path, str]:
    """Return what an error says of each picture that it names.

    How many channels a model takes is known only in the session.
    """
    known = {str(picture.absolute()): picture for picture in pictures}
    found = {}
    for line in str(error).splitlines():
        for name, picture in known.items():
            if line.startswith(f"{name} "):
                found[picture] = line.replace(name, str(picture), 1)
    return found


def _require_unchanged(picture: Path, digest: str) -> None:
    """Refuse to keep an answer if nobody knows to which content of the picture it is."""
    from mpcvit.secure.answers import digest_of

    if digest_of(picture) != digest:
        raise UserError(
            f"{picture} has changed while the command ran, so its answer was not kept and may "
            "be to either content: ask for it again"
        )


@contextmanager
def _telling_what_is_kept(path: Path, answers: Mapping[int, Any], total: int) -> Iterator[None]:
    """If the body fails, say how many answers there are and how to go on."""
    from mpcvit.report.live import tell

    try:
        yield
    except BaseException:
        if answers and path.exists():
            aim = "ask for the others" if len(answers) < total else "print them again"
            tell(
                f"note: {len(answers)} of {total} images have an answer, kept in {path}; add "
                f"--resume to {aim}"
            )
        raise


def _print_answer(picture: Path, answer: "ImageAnswer", output: Output) -> None:
    """Print what is known of an image now, unless all come at the end."""
    if not output.as_json:
        print(f"{shown(str(picture))}: {answer.words}", flush=True)
    elif output.stream:
        print(json.dumps(_prediction(picture, answer)), flush=True)


def _prediction(picture: Path, answer: "ImageAnswer") -> dict[str, Any]:
    """Return what was revealed of an image; nothing if the answer was refused."""
    known: dict[str, Any] = {
        "image": str(picture),
        "refused": not answer.trusted,
        "close": answer.close,
    }
    if not answer.trusted:
        return known
    if answer.model.reveal is Reveal.TOP5:
        return {**known, "top5": list(answer.likeliest)}
    known["class"] = answer.likeliest[0]
    if answer.rounded is not None:
        known["rounded"] = list(answer.rounded)
    if answer.logits is not None:
        from mpcvit.secure.answers import LIKELIEST

        known["top"] = [
            {"class": name, "probability": odds} for name, odds in answer.probabilities(LIKELIEST)
        ]
        known["logits"] = list(answer.logits)
    return known


def _print_document(
    rows: list[tuple[Path, "ImageAnswer"]],
    result: "RunResult | None",
    output: Output,
    skipped: tuple[str, ...],
) -> None:
    """Print all answers and the record, or the record alone where answers were streamed."""
    end = {
        "skipped": list(skipped),
        "resized": None if result is None else result.resized,
        "record": None if result is None else encode(result.record),
    }
    if output.stream:
        print(json.dumps(end), flush=True)
        return
    reveal = rows[0][1].model.reveal.value
    print_json({"reveal": reveal, "predictions": [_prediction(*row) for row in rows], **end})


def _print_cost(result: "RunResult", trust: str) -> None:
    from mpcvit.report.live import tell
    from mpcvit.secure.answers import REVEALED

    record = result.record
    notes = list(record.notes)
    if result.resized:
        notes.append(f"{result.resized} of {record.images} images resized as in evaluation")
    for note in notes:
        tell(f"note: {note}")
    print(f"revealed   {REVEALED[result.reveal]}, to the data owner")
    print(f"sent       {record.sent_bytes / 1e6:,.2f} MB")
    print(f"received   {record.received_bytes / 1e6:,.2f} MB")
    print(f"exchanges  {record.exchanges:,}")
    print(f"computing  {record.compute_s:.2f} s")
    if (offline := record.offline) is not None:
        print(
            f"offline    {offline.received_bytes / 1e6:,.2f} MB from the dealer in "
            f"{offline.fetch_s:.2f} s, after a wait of {offline.wait_s:.2f} s; "
            f"{offline.held_bytes / 1e6:,.2f} MB held"
        )
    print(f"trusted    {trust}")
    print("\nseconds")
    print_pairs({name: f"{seconds:9.2f}" for name, seconds in _times(record)}, indent="  ")


def _times(record: RunRecord) -> Iterator[tuple[str, float]]:
    """Give every row of the table of seconds: set-up by its parts, images, and all."""
    times, first = record.times, 1
    yield from times.set_up.items()
    yield "set-up", times.set_up_s
    for count, seconds in times.images[:_MOST_ROWS]:
        last = first + count - 1
        yield (f"image {first}" if count == 1 else f"images {first} to {last}"), seconds
        first = last + 1
    if left := times.images[_MOST_ROWS:]:
        yield f"images {first} to {record.images}", sum(seconds for _, seconds in left)
    yield "per image", times.per_image_s
    yield "all images", times.images_s
    yield "total", times.total_s
