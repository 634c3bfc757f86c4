"""Background tasks end, also when one of them misses that it was cancelled."""

import asyncio

from mpcvit.hosts import door
from mpcvit.hosts.door import end_tasks


def test_a_task_that_misses_a_cancellation_is_cancelled_again(monkeypatch):
    monkeypatch.setattr(door, "_AGAIN_S", 0.02)
    missed = []

    async def stubborn():
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if len(missed) == 2:
                    raise
                missed.append(1)

    async def failing():
        raise ValueError("a bug")

    async def main():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: complaints.append(found))
        running = {asyncio.ensure_future(work()) for work in (stubborn, failing)}
        await asyncio.sleep(0)
        await asyncio.wait_for(end_tasks(running), 10)
        assert all(task.done() for task in running)
        running.clear()
        await end_tasks([])
        assert not complaints

    asyncio.run(main())
    assert len(missed) == 2
