"""Queue for work that no caller waits for: events, labels, decision records, announcements.

kube-scheduler requests one decision after the other, so the CPU time of each pod delays a whole
burst. Work that only people read runs when no request has been in flight for `idle_s`, and after
`max_delay_s` at the latest. It is kept in memory: the work that a killed process loses is done by
the next comparison (the label, `pod_annotations.py`) or is in the ledger's history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hamicommon.process.best_effort import log_failure
from hamicommon.process.bulkhead import Bulkhead

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]

IDLE_S = 0.05
MAX_DELAY_S = 2.0
MAX_WAITING = 3000
"""Maximum queued items: three per pod of a burst of a thousand pods."""
MIN_WAIT_S = 0.001
"""Waits below this are over; rounding may leave a rest that no clock reaches."""
WORKERS = 4
"""Number of items that run at the same time."""


@dataclass(eq=False, kw_only=True)
class BackgroundQueue:
    """Run queued work in order while the scheduler is idle."""

    idle_s: float = IDLE_S
    """The scheduler is idle when no request has been in flight for so long."""
    max_delay_s: float = MAX_DELAY_S
    """Maximum time for which work waits."""
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    """Clock in seconds."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    """Log and count of items that raise."""

    def __post_init__(self) -> None:
        self._in_flight = 0
        self._last_request_s = float("-inf")
        self._queue: asyncio.Queue[tuple[float, Work]] = asyncio.Queue(MAX_WAITING)
        self._turn = asyncio.Lock()
        self.dropped = 0
        """Items that found the queue full."""

    @property
    def waiting(self) -> int:
        """Return the number of items that have not begun."""
        return self._queue.qsize()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count the block as a request in progress."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._last_request_s = self.clock()

    def put(self, work: Work) -> bool:
        """Queue an item; return False if the queue is full and the item is dropped."""
        try:
            self._queue.put_nowait((self.clock() + self.max_delay_s, work))
        except asyncio.QueueFull:
            self.dropped += 1
            return False
        return True

    async def run(self) -> None:
        """Run items until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"background-{number}")

    async def until_idle(self, deadline_s: float | None = None) -> None:
        """Return when the scheduler is idle, or at the deadline (`max_delay_s` from now)."""
        if deadline_s is None:
            deadline_s = self.clock() + self.max_delay_s
        while True:
            now_s = self.clock()
            idle_in_s = self.idle_s
            if not self._in_flight:
                idle_in_s += self._last_request_s - now_s
            wait_s = min(idle_in_s, deadline_s - now_s)
            if wait_s < MIN_WAIT_S:
                return
            await self.sleep(wait_s)

    async def _work(self) -> None:
        while True:
            async with self._turn:  # so that items begin in order
                deadline_s, work = await self._queue.get()
                await self.until_idle(deadline_s)
            with (
                log_failure(logger, "Failed to do background work", level=logging.INFO),
                self.bulkhead.item("background", getattr(work, "__qualname__", "")),
            ):
                await work()
