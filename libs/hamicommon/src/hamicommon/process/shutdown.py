"""Wait for the signal to stop, and end background tasks reliably.

Before Python 3.12, `asyncio.wait_for`, which the NATS client uses, loses a cancellation that
arrives in the same turn of the loop as the answer or the time-out (gh-86296). A loop whose
cancellation was lost continues, and a service that waits for its end never stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable, Iterator
from typing import Any

# Longer than a task's clean-up (the bus closes within 3 s), which a second one would cut off.
CANCEL_RETRY_INTERVAL_S = 5.0


async def until_stopped() -> None:
    """Return at SIGTERM or SIGINT; a second signal has its default effect."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in signals:
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they are done; each is cancelled again every 5 s.

    A task's error is not raised here: its task group handles it.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_RETRY_INTERVAL_S)


@contextlib.contextmanager
def propagate_cancellation() -> Iterator[None]:
    """Raise a cancellation at the end of the block if a driver's call inside swallowed it.

    `end` does not suffice, because a task group passes on only its first cancellation.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
