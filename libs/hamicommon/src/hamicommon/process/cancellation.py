"""Cancellation of background tasks: they end for sure, and drivers lose no cancellation.

`asyncio.wait_for`, which the NATS client uses, loses a cancellation before Python 3.12 when it
comes in the same turn of the loop as the answer or the time-out (gh-86296). A loop whose
cancellation was lost runs on, and a service that waits for its end never stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

# Longer than a task needs to clean up (the bus closes within 3 s), which another would cut off.
CANCEL_AGAIN_S = 5.0


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels the tasks and waits until they are done; each is cancelled again every 5 s.

    An error that a task ended with is not raised here: it is its task group's business.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)


@contextlib.contextmanager
def propagate_cancellation() -> Iterator[None]:
    """Around a driver's call: a cancellation that came within it and was lost is raised at its end.

    Needed besides `end`, because a task group passes on its first cancellation only.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
