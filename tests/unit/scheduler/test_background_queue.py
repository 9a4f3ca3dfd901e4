"""Work without a waiting caller runs in order while the scheduler is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hami_scheduler.background_queue import IDLE_S, MAX_DELAY_S, MAX_WAITING, BackgroundQueue
from hamicommon.errors import Unavailable
from hamicommon.process.bulkhead import Bulkhead


class Time:
    """Clock that advances when a task sleeps."""

    now_s = 100.0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class Desk:
    """A queue with its workers, and when its work was done."""

    def __init__(self) -> None:
        self.time = Time()
        self.bulkhead = Bulkhead()
        self.queue = BackgroundQueue(
            clock=lambda: self.time.now_s, sleep=self.time.sleep, bulkhead=self.bulkhead
        )
        self.done: dict[str, float] = {}
        self._more = asyncio.Event()

    def put(self, name: str, *, error: Exception | None = None) -> bool:
        async def work() -> None:
            self.done[name] = self.time.now_s
            self._more.set()
            if error is not None:
                raise error

        return self.queue.put(work)

    async def until_done(self, *names: str) -> None:
        while not set(names) <= self.done.keys():
            self._more.clear()
            await self._more.wait()


@asynccontextmanager
async def working() -> AsyncIterator[Desk]:
    desk = Desk()
    task = asyncio.create_task(desk.queue.run())
    yield desk
    task.cancel()


async def test_it_runs_immediately_while_no_request_is_in_flight() -> None:
    async with working() as desk:
        began_s = desk.time.now_s
        desk.put("label")
        await desk.until_done("label")

    assert desk.done["label"] == began_s


async def test_it_waits_until_the_last_request_of_a_burst_is_answered() -> None:
    async with working() as desk:
        with desk.queue.request():
            desk.put("label")
            await desk.time.sleep(1.0)
            answered_s = desk.time.now_s
        await desk.until_done("label")

    assert desk.done["label"] >= answered_s + IDLE_S


async def test_a_burst_without_end_delays_it_for_a_bounded_time() -> None:
    async with working() as desk:
        with desk.queue.request():
            began_s = desk.time.now_s
            desk.put("label")
            await desk.until_done("label")

    assert desk.done["label"] == pytest.approx(began_s + MAX_DELAY_S)


async def test_items_begin_in_the_order_in_which_they_were_put() -> None:
    names = [str(number) for number in range(50)]
    async with working() as desk:
        with desk.queue.request():
            for name in names:
                desk.put(name)
        await desk.until_done(*names)

    assert list(desk.done) == names


@pytest.mark.parametrize("error", [Unavailable("the API server is away"), ValueError("odd")])
async def test_an_item_that_raises_does_not_stop_the_others(error: Exception) -> None:
    async with working() as desk:
        for number in range(10):
            desk.put(f"lost-{number}", error=error)
        desk.put("next")
        await desk.until_done("next")

    assert desk.bulkhead.failures == ({"background": 10} if isinstance(error, ValueError) else {})


async def test_items_beyond_the_bound_are_dropped_and_counted() -> None:
    desk = Desk()

    assert all(desk.put(str(number)) for number in range(MAX_WAITING))
    assert not desk.put("one more")

    assert (desk.queue.waiting, desk.queue.dropped) == (MAX_WAITING, 1)


async def test_waiting_for_idleness_ends_soon_after_the_last_request() -> None:
    desk = Desk()
    with desk.queue.request():
        await desk.time.sleep(1.0)

    await desk.queue.until_idle()

    assert desk.time.now_s == pytest.approx(101.0 + IDLE_S)


async def test_waiting_for_idleness_is_bounded() -> None:
    desk = Desk()
    with desk.queue.request():
        await desk.queue.until_idle()

    assert desk.time.now_s == pytest.approx(100.0 + MAX_DELAY_S)


async def test_a_rest_of_rounding_is_not_waited_for() -> None:
    desk = Desk()
    desk.time.now_s = 1e6 / 3
    with desk.queue.request():
        pass
    # By the clock the idle time is over but for less than it can advance by.
    desk.time.now_s += IDLE_S - 1e-9
    now_s = desk.time.now_s

    await desk.queue.until_idle()

    assert desk.time.now_s == now_s
