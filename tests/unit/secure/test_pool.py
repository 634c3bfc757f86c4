"""The pool: clients in the order in which they came, and a party for each, with no SPU."""

import asyncio
import threading

import pytest

from mpcvit.errors import UserError
from mpcvit.secure.service import pool as module
from mpcvit.secure.service.pool import Pool

PATIENCE_S = 60  # of tests, on a busy machine


class Party:
    """Stands for a process that has loaded the model."""

    def __init__(self):
        self.is_alive, self.is_closed = True, False

    def close(self):
        assert not self.is_closed
        self.is_alive, self.is_closed = False, True


class Factory:
    """Makes parties; fails as often as it is asked to."""

    def __init__(self, *errors):
        self.made, self.errors = [], list(errors)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def __call__(self):
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.made.append(Party())
        return self.made[-1]


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(module, "_FIRST_BACKOFF_S", 0.01)


def run(size, factory, work):
    """Run `work` with an open pool; nothing may fail unseen, and every party is closed."""
    notes = []

    async def main():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: complaints.append(found))
        pool = Pool(size, factory, notes.append)
        await pool.open()
        try:
            await asyncio.wait_for(work(pool), PATIENCE_S)
        finally:
            factory.gate.set()
            await pool.close()
        assert not complaints
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert all(party.is_closed for party in factory.made)
    return notes


async def served(waiter):
    return await asyncio.wait_for(asyncio.shield(waiter.party), PATIENCE_S)


async def until(condition):
    async def look():
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), PATIENCE_S)


def test_clients_are_served_in_the_order_in_which_they_came():
    factory = Factory()

    async def work(pool):
        waiters = [pool.enter(name) for name in "abcd"]
        assert [pool.place_of(waiter) for waiter in waiters] == [1, 2, 3, 4]
        parties = []
        for number, waiter in enumerate(waiters):
            parties.append(await served(waiter))
            places = [pool.place_of(other) for other in waiters[number:]]
            assert places == list(range(4 - number))
            assert (pool.serving, pool.waiting) == (1, 3 - number)
            assert not any(other.party.done() for other in waiters[number + 1 :])
            pool.leave(waiter)
        assert len({id(party) for party in parties}) == 4  # one session each
        await until(lambda: all(party.is_closed for party in parties))

    assert run(1, factory, work) == []


def test_as_many_are_served_at_once_as_there_are_places():
    factory = Factory()

    async def work(pool):
        waiters = [pool.enter(name) for name in "abcde"]
        first = [await served(waiter) for waiter in waiters[:3]]
        assert len(set(map(id, first))) == 3
        await asyncio.sleep(0.05)
        assert (pool.serving, pool.waiting) == (3, 2)
        pool.leave(waiters[1])
        await served(waiters[3])
        assert not first[0].is_closed
        assert first[1].is_closed
        for waiter in waiters:
            pool.leave(waiter)
        await until(lambda: pool.serving == 0)

    assert run(3, factory, work) == []


def test_one_who_leaves_the_queue_makes_room_for_the_next():
    factory = Factory()

    async def work(pool):
        one, two, three = (pool.enter(name) for name in "abc")
        await served(one)
        pool.leave(two)
        assert [pool.place_of(waiter) for waiter in (one, two, three)] == [0, 0, 1]
        pool.leave(two)  # once more changes nothing
        pool.leave(one)
        pool.leave(one)
        await served(three)
        pool.leave(three)
        await until(lambda: pool.serving == 0)
        pool.leave(three)

    assert run(1, factory, work) == []


@pytest.mark.parametrize("places", [1, 2])
def test_one_client_cannot_keep_the_places_from_others(places):
    """It asks first, and for everything; its next session comes after the first of others."""
    factory = Factory()

    async def work(pool):
        greedy = [pool.enter("greedy") for _ in range(6)]
        for waiter in greedy[:places]:
            await served(waiter)
        one, two = pool.enter("one"), pool.enter("two")
        waiting = [one, two, *greedy[places:]]  # where all count alike, those two come last
        assert [pool.place_of(waiter) for waiter in waiting] == [*range(1, len(waiting) + 1)]
        last = greedy[0]
        for waiter in (one, two):
            pool.leave(last)
            await served(waiter)
            last = waiter
        assert not any(waiter.party.done() for waiter in greedy[places:])
        pool.leave(last)
        await served(greedy[places])  # but no place is kept free
        for waiter in greedy:
            pool.leave(waiter)
        await until(lambda: pool.serving == 0)

    assert run(places, factory, work) == []


def test_a_full_queue_of_one_client_makes_room_for_others():
    factory = Factory()

    async def work(pool):
        greedy = [pool.enter("greedy") for _ in range(4)]
        await served(greedy[0])
        assert not pool.make_room("greedy")
        assert pool.make_room("other")
        other = pool.enter("other")
        assert [waiter.is_put_off for waiter in greedy] == [False, False, False, True]
        assert not pool.make_room("greedy")  # it cannot take that place back
        assert [pool.place_of(waiter) for waiter in (other, *greedy)] == [1, 0, 2, 3, 0]
        assert pool.make_room("other")  # whose second would come before the other's third
        assert not pool.make_room("other")
        assert pool.make_room("third")
        assert [waiter.is_put_off for waiter in greedy] == [False, True, True, True]
        for waiter in (other, *greedy):
            pool.leave(waiter)
        await until(lambda: pool.serving == 0)

    assert run(1, factory, work) == []


def test_who_waits_alike_is_never_put_off():
    factory = Factory()

    async def work(pool):
        waiters = [pool.enter(name) for name in "abc"]
        await served(waiters[0])
        assert not any(pool.make_room(name) for name in "abcd")
        for waiter in waiters:
            pool.leave(waiter)
        assert not pool.make_room("d")  # in an empty queue
        await until(lambda: pool.serving == 0)

    assert run(1, factory, work) == []


def test_a_party_that_dies_while_it_waits_is_replaced():
    factory = Factory()

    async def work(pool):
        factory.made[0].is_alive = False
        await until(lambda: len(factory.made) == 2)
        assert factory.made[0].is_closed
        waiter = pool.enter("a")
        assert await served(waiter) is factory.made[1]
        pool.leave(waiter)

    assert run(1, factory, work) == ["a waiting party ended, and is replaced"]


def test_a_client_never_gets_a_dead_party():
    factory = Factory()

    async def work(pool):
        factory.made[0].is_alive = False
        waiter = pool.enter("a")  # before anybody has noticed
        assert await served(waiter) is factory.made[1]
        pool.leave(waiter)

    run(1, factory, work)


@pytest.mark.parametrize("error", [UserError("no model"), OSError("disk full"), ValueError("bug")])
def test_a_party_that_does_not_start_is_tried_again(error):
    factory = Factory(None, error, error)

    async def work(pool):
        for _ in range(3):
            waiter = pool.enter("a")
            await served(waiter)
            pool.leave(waiter)

    notes = run(1, factory, work)
    assert [note.startswith("the model's party did not start, next try in") for note in notes] == [
        True,
        True,
    ]
    assert str(error) in notes[0]


def test_a_model_that_cannot_be_loaded_ends_the_service_at_once():
    async def work(pool):
        raise AssertionError("the pool did not open")

    with pytest.raises(UserError, match="no such model"):
        run(2, Factory(UserError("no such model")), work)


def test_a_party_that_is_starting_when_the_pool_closes_is_closed_too():
    factory = Factory()

    async def work(pool):
        factory.gate.clear()
        factory.entered.clear()
        waiter = pool.enter("a")
        await served(waiter)
        pool.leave(waiter)
        await until(factory.entered.is_set)  # its successor is being made
        threading.Timer(0.2, factory.gate.set).start()
        # the pool is closed before that

    async def main():
        pool = Pool(1, factory, lambda note: None)
        await pool.open()
        await work(pool)
        await asyncio.wait_for(pool.close(), PATIENCE_S)

    asyncio.run(main())
    assert len(factory.made) == 2
    assert all(party.is_closed for party in factory.made)


def test_sessions_work_beside_each_other():
    both = threading.Barrier(2)

    def meet():
        both.wait(PATIENCE_S)

    async def work(pool):
        await asyncio.gather(pool.watch(meet), pool.watch(meet))

    run(2, Factory(), work)
