"""Parties that have loaded the model and wait for clients, and the queue of those clients.

Each party serves one session, in a process and a folder of its own, and is then replaced.
Whatever a client does to its party touches no other session.
"""

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mpcvit.artifacts.profile import Profile
from mpcvit.hosts.door import end_tasks
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.parties.events import Journal
from mpcvit.secure.parties.job import OwnModel
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.parties.supervise import PartyProcess, wait_until_ready

_LOOK_EVERY_S = 1.0  # whether a waiting party is still alive
_FIRST_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 30.0


class StandbyParty:
    """A model owner's process that waits for a client; `places` of them share the machine."""

    def __init__(
        self,
        own: OwnModel,
        profile: Profile,
        places: int = 1,
        dealer: DealerEndpoint | None = None,
    ) -> None:
        self.journal = Journal()
        with ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="mpcvit-"))
            self.folder = Path(name)
            party = PartyProcess(
                Role.MODEL_OWNER, own, self.folder, dealer=dealer, parties_here=places
            )
            self.process = stack.enter_context(party)
            wait_until_ready(self.process, profile, self.journal)
            self._stack = stack.pop_all()

    @property
    def is_alive(self) -> bool:
        return self.process.process.poll() is None

    def close(self) -> None:
        self._stack.close()


class Waiter:
    """A client in the queue; `party` is set when its turn has come, or None if it is put off."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.party: asyncio.Future[StandbyParty | None]
        self.party = asyncio.get_running_loop().create_future()

    @property
    def is_put_off(self) -> bool:
        done = self.party.done() and not self.party.cancelled()
        return done and self.party.result() is None


class Pool:
    """A fixed number of places, each with a party that waits or serves.

    `start` makes a party, and may block. `note` takes a sentence about one that failed.
    Clients take turns: one's second session comes after the first of others, and who was
    served longest ago comes first.
    """

    def __init__(
        self, size: int, start: Callable[[], StandbyParty], note: Callable[[str], None]
    ) -> None:
        self.size = size
        self._start, self._note = start, note
        self._queue: list[Waiter] = []
        self._taken: Counter[str] = Counter()  # places by client
        self._began: dict[str, float] = {}  # when a client's turn came last
        self._arrival = asyncio.Event()
        self._served: dict[StandbyParty, asyncio.Event] = {}
        self._threads = ThreadPoolExecutor(max_workers=2 * size, thread_name_prefix="mpcvit-pool")
        self._places: list[asyncio.Task[None]] = []
        self.serving = 0
        self.ready = 0  # parties that wait for a client

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def open(self) -> None:
        """Start a party in every place, and return when the first one is ready."""
        first = await self._start_party()  # a model that cannot be loaded ends `serve`
        self._places = [
            asyncio.ensure_future(self._keep_place(first if index == 0 else None))
            for index in range(self.size)
        ]

    async def close(self) -> None:
        await end_tasks(self._places)
        # a party that is just starting is closed before this returns
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def make_room(self, client: str) -> bool:
        """Put off who comes last, if a client's turn is before that; say whether."""
        own = self._taken[client] + sum(waiter.client == client for waiter in self._queue)
        turns = self._turns()
        if not turns or turns[-1][0] <= own:
            return False
        _, last = turns[-1]
        self._queue.remove(last)
        last.party.set_result(None)
        return True

    def enter(self, client: str) -> Waiter:
        """Join the queue."""
        waiter = Waiter(client)
        self._queue.append(waiter)
        self._arrival.set()
        return waiter

    def place_of(self, waiter: Waiter) -> int:
        """Return a client's place in the queue, counted from one; 0 once it has left it."""
        order = [other for _, other in self._turns()]
        return order.index(waiter) + 1 if waiter in order else 0

    def leave(self, waiter: Waiter) -> None:
        """Leave the queue, and give back the party if there is one."""
        with contextlib.suppress(ValueError):
            self._queue.remove(waiter)
        if waiter.party.done() and not waiter.party.cancelled():
            party = waiter.party.result()
            if party in self._served:
                self._served[party].set()
        waiter.party.cancel()

    async def watch(self, work: Callable[[], None]) -> None:
        """Run a session's blocking work beside the others."""
        await self._in_thread(work)

    async def _keep_place(self, first: StandbyParty | None) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                party = first or await self._start_party()
            except Exception as error:  # whatever it is, the place must not be lost
                self._note(f"the model's party did not start, next try in {backoff_s:g} s: {error}")
                await asyncio.sleep(backoff_s)
                backoff_s = min(_MAX_BACKOFF_S, 2 * backoff_s)
                continue
            first, backoff_s = None, _FIRST_BACKOFF_S
            try:
                await self._serve_one(party)
            finally:
                # killing a process takes no time, so that a cancelled place ends at once
                party.close()

    async def _start_party(self) -> StandbyParty:
        """Start a party; one that is ready only after this was cancelled is closed."""
        starting = self._threads.submit(self._start)
        try:
            return await asyncio.wrap_future(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_close_unless_failed)
            raise

    async def _serve_one(self, party: StandbyParty) -> None:
        """Wait for a client, and then until it is served."""
        self.ready += 1
        try:
            while True:
                if not party.is_alive:
                    self._note("a waiting party ended, and is replaced")
                    return
                if self._queue:
                    break
                self._arrival.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrival.wait(), _LOOK_EVERY_S)
        finally:
            self.ready -= 1
        _, waiter = self._turns()[0]
        self._queue.remove(waiter)
        served = self._served[party] = asyncio.Event()
        self.serving += 1
        self._taken[waiter.client] += 1
        self._began[waiter.client] = time.monotonic()
        try:
            waiter.party.set_result(party)
            await served.wait()
        finally:
            self.serving -= 1
            self._taken[waiter.client] -= 1
            self._taken += Counter()  # forgets those that are at zero
            del self._served[party]

    def _turns(self) -> list[tuple[int, Waiter]]:
        """Return who waits, in order, and how many sessions of that client come before."""
        before, found = self._taken.copy(), list[tuple[int, Waiter]]()
        for waiter in self._queue:
            found.append((before[waiter.client], waiter))
            before[waiter.client] += 1
        return sorted(found, key=lambda each: (each[0], self._began.get(each[1].client, 0.0)))

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _close_unless_failed(starting: "Future[StandbyParty]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
