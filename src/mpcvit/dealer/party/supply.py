"""Supply: fetches each inference's material ahead of it, and keeps it until it is used."""

import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.jobs import Job
from mpcvit.dealer.party.client import DealerClient

_TICK_S = 0.5
_FORGOTTEN_BYTES = 1 << 22  # at least, at a time


@dataclass(frozen=True, kw_only=True)
class FetchCost:
    """The cost of an inference before it began."""

    received_bytes: int  # also the memory that it takes
    fetch_s: float


class Supply:
    """The material of a job's inferences, by their number."""

    def __init__(self, client: DealerClient, job: Job) -> None:
        self._client, self._job = client, job
        self._loads: dict[int, _Load] = {}

    def prefetch(self, inference: int) -> None:
        """Begin to fetch, unless it was begun or there is no such inference."""
        if inference < self._job.inferences and inference not in self._loads:
            self._loads[inference] = _Load(self._client, self._job, inference)

    def wait(
        self, inference: int, tick: Callable[[int, int], None] = lambda done, total: None
    ) -> FetchCost:
        """Return once all of an inference's material is here; `tick` is called meanwhile."""
        if inference in self._loads and self._loads[inference].has_failed:
            del self._loads[inference]  # the dealer may have been away while nobody needed it
        self.prefetch(inference)
        try:
            return self._loads[inference].wait(tick)
        except DealerError:
            del self._loads[inference]
            raise

    def material(self, inference: int) -> memoryview:
        load = self._loads.get(inference)
        if load is None or not load.is_whole:
            raise DealerError(f"the material of inference {inference} is not there")
        return load.content

    def forget(self, inference: int, before: int) -> None:
        """Give the memory of used material back, so that the next can take it."""
        self._loads[inference].forget(before)

    def release(self, inference: int) -> None:
        """Forget what was used."""
        self._loads.pop(inference, None)


class _Load:
    """One inference's material, on its way."""

    def __init__(self, client: DealerClient, job: Job, inference: int) -> None:
        script, _ = job.inference(inference)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory would not be given back
        self._memory = mmap.mmap(-1, max(1, script.answer_bytes), flags=private)
        self.content = memoryview(self._memory)[: script.answer_bytes]
        self._forgotten = 0
        self._done = 0
        self._offline: FetchCost | None = None
        self._failure: DealerError | None = None
        self._ended = threading.Event()
        self._work = (client, job, inference)
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def is_whole(self) -> bool:
        return self._offline is not None

    @property
    def has_failed(self) -> bool:
        return self._ended.is_set() and not self.is_whole

    def forget(self, before: int) -> None:
        end = before - before % mmap.PAGESIZE
        if end - self._forgotten >= _FORGOTTEN_BYTES:
            length = end - self._forgotten
            self._memory.madvise(mmap.MADV_DONTNEED, self._forgotten, length)
            self._forgotten = end

    def wait(self, tick: Callable[[int, int], None]) -> FetchCost:
        while not self._ended.wait(_TICK_S):
            tick(self._done, len(self.content))
        if self._offline is None:
            raise self._failure or DealerError("the material could not be fetched")
        return self._offline

    def _run(self) -> None:
        started = time.perf_counter()
        client, job, inference = self._work
        try:
            client.fetch(job, inference, self.content, self._count)
            self._offline = FetchCost(
                received_bytes=len(self.content), fetch_s=time.perf_counter() - started
            )
        except DealerError as error:
            self._failure = error
        finally:
            self._ended.set()

    def _count(self, done: int) -> None:
        self._done = done
