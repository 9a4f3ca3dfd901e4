"""Calls that wait at the same moment go as one: group commit in the application.

One batch is on its way at a time, and what comes until it is back is the next one. So a single call
waits for nobody, and many calls share their round trip, their statement and their commit. Callers
that come one after the other share them too where batches begin at a pace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from hamicommon.errors import HamiError, Unavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST = 128
"""Items of one batch; a statement with so many arrays' elements takes some 10 ms."""


class Batches(Generic[Item, Answer]):
    """A queue in front of a call that takes many.

    `carry_out` answers each item of a batch in order, or raises from the error tree for all of
    them; no batch has two items of one `key`, and those of one key go in the order they came in.
    `gather_s`: how long an item that was `put` may wait for others. `pace_s`: a batch begins so
    long after the one before at the earliest; the first call after a calm still waits for nobody.
    `enough`: so many that wait begin a batch before its pace. `calm_s`: a batch that had to wait
    waits on while items come closer to each other than that, `most_s` from its first one at most,
    and only while `waits_on` holds for those that wait (`look` when that has changed).
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        key: Callable[[Item], Hashable],
        gather_s: float = 0.0,
        pace_s: float = 0.0,
        calm_s: float = 0.0,
        most_s: float = 0.0,
        waits_on: Callable[[Sequence[Item]], bool] = lambda _: True,
        most: int = MOST,
        enough: int = MOST,
    ) -> None:
        self._carry_out = carry_out
        self._key = key
        self._gather_s = gather_s
        self._pace_s = pace_s
        self._calm_s = calm_s
        self._most_s = most_s
        self._waits_on = waits_on
        self._most = most
        self._enough = enough
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._stopped = False
        self._come = asyncio.Event()
        self._pressing = asyncio.Event()
        self._are_enough = asyncio.Event()
        self._look = asyncio.Event()
        """Enough wait, or it is to be seen whether the others still do."""
        self._first_at_s = self._last_at_s = 0.0
        """When the first and the last of those that wait came, by the event loop's clock."""

    async def ask(self, item: Item) -> Answer:
        """The item's answer. Raises: what the batch raised, Unavailable when the service stops."""
        future = self.put(item)
        self._pressing.set()
        return await future

    def put(self, item: Item) -> asyncio.Future[Answer]:
        """Queues an item that nobody waits for; its answer, or the error, is the future's."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        # One that nobody looks at is no mistake.
        future.add_done_callback(_seen)
        if self._stopped:
            _fail(future, Unavailable("the service is stopping"))
            return future
        self._last_at_s = loop.time()
        if not self._waiting:
            self._first_at_s = self._last_at_s
        self._waiting.append((item, future))
        self._come.set()
        if len(self._waiting) >= self._enough:
            self._are_enough.set()
            self._look.set()
        return future

    def look(self) -> None:
        """What `waits_on` goes by has changed."""
        self._look.set()

    async def run(self) -> None:
        """Carries out until cancelled; what waits then is answered with Unavailable."""
        loop = asyncio.get_running_loop()
        earliest_s = 0.0
        try:
            while True:
                await self._come.wait()
                await self._gathered(loop, earliest_s)
                earliest_s = loop.time() + self._pace_s
                self._pressing.clear()
                self._are_enough.clear()
                # Also those that a batch had no room for; what comes from now on may fill one up.
                left = len(self._waiting)
                while left > 0:
                    left -= await self._next()
                if not self._waiting:
                    self._come.clear()
        finally:
            self._stopped = True
            stopping = Unavailable("the service is stopping")
            for _, future in self._waiting:
                _fail(future, stopping)
            self._waiting.clear()

    async def _gathered(self, loop: asyncio.AbstractEventLoop, earliest_s: float) -> None:
        """Waits until a batch may begin, which is at once after a calm."""
        waited = False
        if self._gather_s and not self._pressing.is_set():
            waited = True
            await _until(self._pressing, self._gather_s)
        if (pace_s := earliest_s - loop.time()) > 0:
            waited = True
            await _until(self._are_enough, pace_s)
        while waited and not self._are_enough.is_set():
            latest_s = min(self._last_at_s + self._calm_s, self._first_at_s + self._most_s)
            left_s = latest_s - loop.time()
            if left_s <= 0 or not self._waits_on([item for item, _ in self._waiting]):
                break
            self._look.clear()
            await _until(self._look, left_s)

    async def _next(self) -> int:
        """Carries one batch out; of how many items it was."""
        batch: dict[Hashable, tuple[Item, asyncio.Future[Answer]]] = {}
        later: list[tuple[Item, asyncio.Future[Answer]]] = []
        while self._waiting and len(batch) < self._most:
            entry = self._waiting.popleft()
            key = self._key(entry[0])
            if key in batch:
                later.append(entry)
            else:
                batch[key] = entry
        self._waiting.extendleft(reversed(later))
        futures = [future for _, future in batch.values()]
        try:
            answers = await self._carry_out([item for item, _ in batch.values()])
        except BaseException as exc:  # also a cancellation: nobody must wait for ever
            known = isinstance(exc, HamiError)
            for future in futures:
                _fail(future, exc if known else Unavailable("the service is stopping"))
            if not known:
                raise
            return len(futures)
        for future, answer in zip(futures, answers, strict=True):
            if not future.done():
                future.set_result(answer)
        return len(futures)


async def _until(event: asyncio.Event, limit_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


def _fail(future: asyncio.Future[Answer], exc: BaseException) -> None:
    if not future.done():
        future.set_exception(exc)


def _seen(future: asyncio.Future[Answer]) -> None:
    if not future.cancelled():
        future.exception()
