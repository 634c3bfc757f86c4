"""Progress: a bar on the terminal, a plain line now and then in a file, a line per epoch."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mpcvit.artifacts.provenance import judged_by
from mpcvit.errors import shown_lines
from mpcvit.progress import BEGAN
from mpcvit.progress import Progress as Report
from mpcvit.train.loop import EpochEvent, StepEvent

# Bars go to standard error, so that standard output holds results alone.
console = Console(stderr=True)
LINE_EVERY_S = 10.0


_LOOK_EVERY_S = 0.1
_last_sign_at = BEGAN


def tell(sentence: str) -> None:
    """Say something beside the results, as a line of its own."""
    global _last_sign_at
    _last_sign_at = time.monotonic()
    # no markup, as it may name files whose names have brackets
    console.print(shown_lines(sentence), highlight=False, soft_wrap=True, markup=False)


class _Progress(Progress):
    """Bars on a terminal; in a file a plain line where none was written for ten seconds."""

    _over: threading.Event | None = None

    def start(self) -> None:
        super().start()
        if self.disable and self._over is None:
            self._over = threading.Event()
            threading.Thread(target=self._write_lines, args=(self._over,), daemon=True).start()

    def stop(self) -> None:
        super().stop()
        if self._over is not None:
            self._over.set()
            self._over = None

    def _write_lines(self, over: threading.Event) -> None:
        # short pieces of work in a row are no silence, so the clock is that of all of them
        while not over.wait(min(_LOOK_EVERY_S, LINE_EVERY_S)):
            if time.monotonic() < _last_sign_at + LINE_EVERY_S:
                continue
            tasks = self.tasks
            # what is going on, or what was done last
            shown = [task for task in tasks if not task.finished] or tasks[-1:]
            if shown:
                line = ", ".join(_describe(task) for task in shown)
                tell(line)


def _describe(task: Task) -> str:
    """Return how far a task is, in words."""
    parts = [task.description.strip()]
    if task.total is None:
        parts.append(f"{task.completed:g} so far,")
    elif task.total > 1:  # otherwise there is nothing to count
        parts.append(f"{task.completed:g} of {task.total:g}")
    parts += [f"after {task.elapsed or 0:.0f} s", task.fields.get("state", "")]
    return " ".join(part for part in parts if part)


def _progress(*extra: ProgressColumn) -> Progress:
    return _Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *extra,
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        # A log file wants lines, not a bar drawn again and again.
        disable=not console.is_terminal,
        # Results appear above a bar on the same terminal, and reach a file as they are.
        redirect_stdout=sys.stdout.isatty(),
    )


@contextmanager
def counting() -> Iterator[Report]:
    """Show (what, done, total) as bars, one for each `what`."""
    tasks: dict[str, TaskID] = {}
    with _progress() as progress:

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total or None)
            progress.update(tasks[what], completed=done, total=total or None)

        yield update


class LiveProgress:
    """Shows a training run: loss, accuracy, images per second, time left.

    By itself, or as a line of a display that shows more.
    """

    def __init__(self, within: Progress | None = None) -> None:
        self._within = within
        self._progress = within or _progress(TextColumn("{task.fields[state]}"))
        self._task: TaskID | None = None

    def __enter__(self) -> "LiveProgress":
        if self._within is None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._within is None:
            self._progress.stop()
        elif self._task is not None:
            self._progress.remove_task(self._task)

    def on_step(self, event: StepEvent) -> None:
        state = " ".join(f"{name} {value:.3f}" for name, value in event.means.items())
        state += f" {event.images_per_s:,.0f} images/s"
        if self._task is None:
            self._task = self._progress.add_task(
                "", total=event.steps, completed=event.step, state=state
            )
        self._progress.update(
            self._task,
            description=f"epoch {event.epoch + 1}/{event.epochs}",
            completed=event.step,
            state=state,
        )

    def on_epoch(self, event: EpochEvent) -> None:
        row = event.row
        line = f"epoch {row['epoch']:>3}  train loss {row['train_loss']:.4f}"
        split = judged_by(row)
        if f"{split}_top1" in row:
            loss, top1 = row[f"{split}_loss"], row[f"{split}_top1"]
            line += f"  {split} loss {loss:.4f}  top-1 {100 * top1:.2f} %"
        line += f"  {row['images_per_s']:,.0f} images/s, {100 * row['input_wait']:.0f} % input"
        tell(line)


class WholeProgress:
    """Shows work of many steps: a bar for the whole, and one for what its step is doing."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._progress = _progress(TextColumn("{task.fields[state]}"))
        self._whole = self._progress.add_task("", total=steps, state="")
        self._parts: dict[str, TaskID] = {}

    def __enter__(self) -> "WholeProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, name: str) -> None:
        done = int(self._progress.tasks[0].completed)
        self._progress.update(self._whole, description=name)
        tell(f"step {done + 1} of {self._steps}: {name}")

    def end(self) -> None:
        for part in self._parts.values():
            self._progress.remove_task(part)
        self._parts.clear()
        self._progress.advance(self._whole)

    def count(self, what: str, done: int, total: int) -> None:
        """Show how far a part of the current step is."""
        if what not in self._parts:
            self._parts[what] = self._progress.add_task(f"  {what}", total=total or None, state="")
        self._progress.update(self._parts[what], completed=done, total=total or None)

    def training(self) -> LiveProgress:
        """Return an observer that shows the training or search of the current step."""
        return LiveProgress(within=self._progress)
