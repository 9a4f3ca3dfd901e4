"""Work that can wait until nobody waits for a decision: labels, Normal events, decisions' records.

kube-scheduler asks for one decision after the other, and a burst of pods is as slow as the CPU time
that each of them costs. What is only for people to read is kept until no decision has run for a
moment, and under a load that never ends for some seconds at most. It is kept in memory: what a kill
takes is written by the next comparison (the label, `pod_annotations.py`) or is in the ledger's
history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from hamicommon.errors import HamiError
from hamicommon.process.bulkhead import Bulkhead

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]

WORKERS = 4
# Between two pods of a burst lie some milliseconds; a quarter of a second is its end.
QUIET_S = 0.25
MOST_HELD_S = 10.0
# Three of each pod; what a burst of a thousand pods needs.
MOST_WAITING = 3000


class DeferredWrites:
    """Keeps it, and does it in order."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        bulkhead: Bulkhead | None = None,
    ) -> None:
        """`clock`: seconds; the event loop's own when None."""
        self._bulkhead = bulkhead or Bulkhead()
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._sleep = sleep
        self._deciding = 0
        self._decided_at = float("-inf")
        self._queue: asyncio.Queue[tuple[float, Work]] = asyncio.Queue(MOST_WAITING)

    @property
    def waiting(self) -> int:
        """Pieces of work that have not begun."""
        return self._queue.qsize()

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """While somebody waits for the block, everything here waits for it too."""
        self._deciding += 1
        try:
            yield
        finally:
            self._deciding -= 1
            self._decided_at = self._clock()

    def put(self, work: Work) -> bool:
        """False when too much waits already: the work is dropped. Never waits."""
        try:
            self._queue.put_nowait((self._clock() + MOST_HELD_S, work))
        except asyncio.QueueFull:
            return False
        return True

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"deferred-{number}")

    async def _work(self) -> None:
        while True:
            latest_s, work = await self._queue.get()
            await self.calm(latest_s - self._clock())
            try:
                with self._bulkhead.item("deferred", getattr(work, "__qualname__", "")):
                    await work()
            except HamiError as exc:
                logger.info("left undone", extra={"error": str(exc)})

    async def calm(self, most_s: float) -> None:
        """Until no decision has run for a moment; so long at most."""
        latest_s = self._clock() + most_s
        while (now_s := self._clock()) < latest_s:
            if (left_s := self._until_calm_s(now_s)) <= 0:
                return
            await self._sleep(min(left_s, latest_s - now_s))

    @property
    def is_calm(self) -> bool:
        """Whether no decision has run for a moment."""
        return self._until_calm_s(self._clock()) <= 0

    def _until_calm_s(self, now_s: float) -> float:
        """So long it takes until it is calm, if no other decision comes."""
        return QUIET_S if self._deciding else self._decided_at + QUIET_S - now_s
