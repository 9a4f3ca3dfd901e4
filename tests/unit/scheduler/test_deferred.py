"""What nobody waits for is done when nobody waits for a decision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hami_scheduler.deferred import MOST_HELD_S, MOST_WAITING, QUIET_S, DeferredWrites
from hamicommon.errors import Unavailable


class Time:
    """It goes on when somebody sleeps."""

    now_s = 100.0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class Desk:
    """Deferred writes with its workers, and when its work was done."""

    def __init__(self) -> None:
        self.time = Time()
        self.deferred = DeferredWrites(clock=lambda: self.time.now_s, sleep=self.time.sleep)
        self.done: dict[str, float] = {}
        self._more = asyncio.Event()

    def put(self, name: str, *, error: bool = False) -> bool:
        async def work() -> None:
            self.done[name] = self.time.now_s
            self._more.set()
            if error:
                raise Unavailable("the API server is away")

        return self.deferred.put(work)

    async def until_done(self, *names: str) -> None:
        while not set(names) <= self.done.keys():
            self._more.clear()
            await self._more.wait()


@asynccontextmanager
async def working() -> AsyncIterator[Desk]:
    desk = Desk()
    task = asyncio.create_task(desk.deferred.run())
    yield desk
    task.cancel()


async def test_it_is_done_at_once_when_nobody_decides() -> None:
    async with working() as desk:
        began_s = desk.time.now_s
        desk.put("label")
        await desk.until_done("label")

    assert desk.done["label"] == began_s


async def test_it_waits_for_the_end_of_a_burst() -> None:
    async with working() as desk:
        with desk.deferred.deciding():
            desk.put("label")
            await desk.time.sleep(1.0)
            decided_s = desk.time.now_s
        await desk.until_done("label")

    assert desk.done["label"] >= decided_s + QUIET_S


async def test_it_is_calm_a_moment_after_the_last_decision() -> None:
    desk = Desk()
    assert desk.deferred.is_calm
    with desk.deferred.deciding():
        await desk.time.sleep(10 * QUIET_S)
        assert not desk.deferred.is_calm
    await desk.time.sleep(QUIET_S / 2)
    assert not desk.deferred.is_calm
    await desk.time.sleep(QUIET_S / 2)
    assert desk.deferred.is_calm


async def test_a_burst_without_end_holds_it_for_some_seconds_only() -> None:
    async with working() as desk:
        with desk.deferred.deciding():
            began_s = desk.time.now_s
            desk.put("label")
            await desk.until_done("label")

    assert desk.done["label"] == began_s + MOST_HELD_S


async def test_work_that_fails_holds_up_nobody() -> None:
    async with working() as desk:
        desk.put("lost", error=True)
        desk.put("next")
        await desk.until_done("lost", "next")


async def test_too_much_of_it_is_refused_and_never_waited_for() -> None:
    desk = Desk()

    assert all(desk.put(str(number)) for number in range(MOST_WAITING))
    assert not desk.put("one more")


async def test_what_waits_for_calm_goes_on_when_nobody_decides() -> None:
    desk = Desk()
    with desk.deferred.deciding():
        await desk.time.sleep(1.0)

    await desk.deferred.calm(2.0)

    assert desk.time.now_s == 101.0 + QUIET_S


async def test_what_waits_for_calm_waits_so_long_at_most() -> None:
    desk = Desk()
    with desk.deferred.deciding():
        await desk.deferred.calm(2.0)

    assert desk.time.now_s == 102.0
