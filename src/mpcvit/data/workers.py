"""Processes that make batches for a training process.

Workers are started as fresh interpreters that import this module and no more:
neither a fork of a process that runs JAX nor, as with `multiprocessing`, a second
run of the user's main script. Each talks through its own socket, whose other end
only the parent holds, so a parent that goes away by whatever means ends them too.
"""

import mmap
import os
import subprocess
import sys
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from mpcvit.data.batches import Batch, BatchMaker, Recipe
from mpcvit.errors import UserError

_AHEAD = 2  # batches that each worker is asked for in advance: one to make, one to hand over
_PATIENCE_S = 5.0  # before a worker that was told to end is killed
_START = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from mpcvit.data.workers import serve; serve(int(sys.argv[1]))"
)


class Task(NamedTuple):
    epoch: int
    step: int


@dataclass(frozen=True, kw_only=True)
class MappedFile:
    """An array that another process can map for itself instead of receiving a copy."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def describe(cls, array: np.ndarray) -> "MappedFile | np.ndarray":
        # a slice of a map is a map too, but keeps the offset of the whole
        if not isinstance(array, np.memmap) or not isinstance(array.base, mmap.mmap):
            return array
        return cls(
            path=str(array.filename),
            offset=array.offset,
            shape=array.shape,
            dtype=array.dtype.str,
        )

    def open(self) -> np.ndarray:
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


class _Worker:
    """One process, the parent's end of its socket, and how many answers it owes."""

    def __init__(self, recipe: Recipe) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # out of the terminal's reach: Ctrl-C is the parent's to handle
                start_new_session=True,
                # augmentation has no linear algebra whose threads could help
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        self._shape = (recipe.shard_size, *recipe.image_shape)
        self._classes = recipe.classes
        self.owed = 0
        split = recipe.split
        self._send(
            (
                replace(recipe, split=replace(split, images=_EMPTY, labels=_EMPTY)),
                MappedFile.describe(split.images),
                MappedFile.describe(split.labels),
            )
        )

    def ask(self, task: Task) -> None:
        self._send(task)
        self.owed += 1

    def answer(self) -> Batch:
        batch = Batch(
            images=np.empty(self._shape, np.float32),
            targets=np.empty((self._shape[0], self._classes), np.float32),
            labels=np.empty(self._shape[0], np.int32),
            indices=np.empty(self._shape[0], np.int32),
        )
        try:
            failure = self._connection.recv()
            self.owed -= 1
            if failure:
                raise RuntimeError(f"a data worker failed:\n{failure}")
            for array in batch:
                _read_into(self._connection.fileno(), array)
        except (EOFError, OSError) as error:
            raise self._died() from error
        return batch

    def end(self) -> None:
        self._connection.close()

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._died() from error

    def _died(self) -> UserError:
        try:
            code = self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        return UserError(
            f"a data worker (process {self.process.pid}) ended unexpectedly with exit code {code}; "
            "if memory ran out, lower data.workers, or set it to 0 to see what fails"
        )


class WorkerPool:
    """A fixed number of workers that make batches in turn."""

    def __init__(self, recipe: Recipe, workers: int) -> None:
        self._workers: list[_Worker] = []
        self._run = 0
        self._close = weakref.finalize(self, _end_all, self._workers)
        for _ in range(workers):
            self._workers.append(_Worker(recipe))

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.process.pid for worker in self._workers)

    def run(self, tasks: Sequence[Task]) -> Iterator[Batch]:
        """Start on `tasks` at once and give their batches in order.

        Only the newest run goes on; an older one that was not used up ends in an error.
        """
        self._run += 1
        ahead = _AHEAD * len(self._workers)
        with self._closing_on_failure():
            for worker in self._workers:
                while worker.owed:
                    worker.answer()
            for number, task in enumerate(tasks[:ahead]):
                self._worker_of(number).ask(task)
        return self._answers(tasks, ahead, self._run)

    def close(self) -> None:
        self._close()

    @property
    def is_closed(self) -> bool:
        return not self._close.alive

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        # an interrupt may leave half an answer in a socket, where no later one could be told apart
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _worker_of(self, number: int) -> _Worker:
        return self._workers[number % len(self._workers)]

    def _answers(self, tasks: Sequence[Task], ahead: int, run: int) -> Iterator[Batch]:
        for number in range(len(tasks)):
            if run != self._run:
                raise RuntimeError("these batches were given up when newer ones were asked for")
            if self.is_closed:
                raise RuntimeError("the workers of these batches were closed")
            worker = self._worker_of(number)
            with self._closing_on_failure():
                batch = worker.answer()
                if number + ahead < len(tasks):
                    worker.ask(tasks[number + ahead])
            yield batch


def serve(handle: int) -> None:
    """The life of a worker: take the recipe, then answer each task with a batch."""
    with Connection(handle) as connection:
        try:
            recipe, images, labels = connection.recv()
            split = replace(recipe.split, images=_restored(images), labels=_restored(labels))
            maker = BatchMaker(replace(recipe, split=split))
            while True:
                _answer(connection, maker, connection.recv())
        except (EOFError, ConnectionError):
            return  # the parent has closed its end, or is no more


def _answer(connection: Connection, maker: BatchMaker, task: Task) -> None:
    try:
        batch = maker.make(task.epoch, task.step)
    except Exception:  # whatever it is, the parent is the one to raise it
        connection.send(traceback.format_exc())
        return
    connection.send("")
    for array in batch:
        _write_from(connection.fileno(), array)


def _as_bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


# Connection.recv_bytes gathers a message in pieces before it copies it; both ends know
# the arrays' shapes, so their bytes can go straight from and into place


def _read_into(handle: int, array: np.ndarray) -> None:
    left = _as_bytes(array)
    while left:
        count = os.readv(handle, [left])
        if count == 0:
            raise EOFError
        left = left[count:]


def _write_from(handle: int, array: np.ndarray) -> None:
    left = _as_bytes(array)
    while left:
        left = left[os.write(handle, left) :]


def _restored(array: MappedFile | np.ndarray) -> np.ndarray:
    return array.open() if isinstance(array, MappedFile) else array


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.end()
    for worker in workers:
        try:
            worker.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


_EMPTY = np.empty(0, np.uint8)
