"""The end of tasks that work in the background."""

import asyncio
from collections.abc import Collection

_AGAIN_S = 2.0  # leaves time to tidy up


async def end_tasks(tasks: "Collection[asyncio.Task[None]]") -> None:
    """Cancel tasks, and return when all of them have ended.

    `asyncio.wait_for` loses a cancellation that comes together with its result (Python
    3.11 and before), so that once may not be enough.
    """
    running = list(tasks)
    pending = set(running)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
    await asyncio.gather(*running, return_exceptions=True)  # nobody else asks how they ended
