"""Calls that wait at the same moment go as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hamicommon.errors import Unavailable
from hamicommon.process.batches import Batches
from hamicommon.process.shutdown import end

from tests.waiting import PATIENCE_S


class Server:
    """Answers each item with its double, when it may; notes the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.asked.set()
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [2 * item for item in items]


@asynccontextmanager
async def running(server: Server, **options: Any) -> AsyncIterator[Batches[int, int]]:
    batches = Batches[int, int](server, key=lambda item: item % 100, **options)
    task = asyncio.create_task(batches.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield batches
    finally:
        await end([task])


async def test_one_call_waits_for_nobody_and_those_that_come_then_go_together() -> None:
    server = Server()
    server.may_answer.clear()
    async with running(server) as batches:
        first = asyncio.create_task(batches.ask(1))
        await server.asked.wait()
        others = [asyncio.create_task(batches.ask(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        server.may_answer.set()

        assert await first == 2
        assert await asyncio.gather(*others) == [4, 6, 8]
    assert server.batches == [[1], [2, 3, 4]]


async def test_items_of_one_key_go_one_after_the_other_in_their_order() -> None:
    server = Server()
    async with running(server) as batches:
        answers = await asyncio.gather(*map(batches.ask, (1, 101, 2, 201, 102)))

    assert answers == [2, 202, 4, 402, 204]
    assert server.batches == [[1, 2], [101, 102], [201]]


async def test_a_batch_that_takes_more_than_was_left_is_the_last_of_its_round() -> None:
    server = Server()
    server.may_answer.clear()
    async with running(server, most=2) as batches:
        # Of one key each, so they go one by one; the second finds a third beside it.
        first = [asyncio.create_task(batches.ask(item)) for item in (1, 101)]
        await server.asked.wait()
        later = asyncio.create_task(batches.ask(2))
        await asyncio.sleep(0)
        server.may_answer.set()
        assert await asyncio.gather(*first, later) == [2, 202, 4]

        assert await batches.ask(3) == 6
    assert server.batches == [[1], [101, 2], [3]]


async def test_no_batch_is_larger_than_the_most() -> None:
    server = Server()
    async with running(server, most=2) as batches:
        await asyncio.gather(*map(batches.ask, range(5)))

    assert server.batches == [[0, 1], [2, 3], [4]]


async def test_what_nobody_waits_for_gathers_until_somebody_asks() -> None:
    server = Server()
    async with running(server, gather_s=PATIENCE_S) as batches:
        put = [batches.put(1), batches.put(2)]
        await asyncio.sleep(0)
        assert server.batches == []

        assert await batches.ask(3) == 6
        assert [future.result() for future in put] == [2, 4]
    assert server.batches == [[1, 2, 3]]


async def test_what_nobody_waits_for_is_carried_out_all_the_same() -> None:
    server = Server()
    async with running(server, gather_s=0.01) as batches:
        assert await batches.put(1) == 2


async def test_a_batch_that_fails_fails_for_each_of_it_and_for_nobody_else() -> None:
    server = Server()
    server.error = Unavailable("away")
    async with running(server) as batches:
        found = await asyncio.gather(batches.ask(1), batches.ask(2), return_exceptions=True)
        assert [type(one) for one in found] == [Unavailable, Unavailable]
        server.error = None
        assert await batches.ask(3) == 6


async def test_a_mistake_of_ours_ends_the_loop_and_leaves_nobody_waiting() -> None:
    server = Server()
    server.error = KeyError("a mistake")
    batches = Batches[int, int](server, key=lambda item: item)
    loop = asyncio.create_task(batches.run())

    with pytest.raises(Unavailable):
        await batches.ask(1)
    with pytest.raises(KeyError):
        await loop


async def test_who_waits_when_the_service_stops_is_answered() -> None:
    server = Server()
    server.may_answer.clear()
    batches = Batches[int, int](server, key=lambda item: item)
    loop = asyncio.create_task(batches.run())
    asking = [asyncio.create_task(batches.ask(1))]
    await server.asked.wait()
    asking.append(asyncio.create_task(batches.ask(2)))
    await asyncio.sleep(0)
    await end([loop])

    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in found] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable):
        await batches.ask(3)


async def test_a_caller_that_went_away_holds_up_nobody() -> None:
    server = Server()
    server.may_answer.clear()
    async with running(server) as batches:
        gone = asyncio.create_task(batches.ask(1))
        stays = asyncio.create_task(batches.ask(2))
        await server.asked.wait()
        gone.cancel()
        await asyncio.sleep(0)
        server.may_answer.set()
        assert await stays == 4


async def test_callers_that_come_one_after_the_other_share_a_batch_at_a_pace() -> None:
    server = Server()
    async with running(server, pace_s=PATIENCE_S) as batches:
        assert await batches.ask(1) == 2
        later = [asyncio.create_task(batches.ask(2))]
        await asyncio.sleep(0)
        later.append(asyncio.create_task(batches.ask(3)))
        await asyncio.sleep(0)
        assert server.batches == [[1]]
        for task in later:
            task.cancel()
    async with running(server, pace_s=0.02) as batches:
        assert [await batches.ask(number) for number in (4, 5)] == [8, 10]


async def test_what_comes_while_a_batch_is_away_waits_for_the_pace() -> None:
    server = Server()
    server.may_answer.clear()
    async with running(server, pace_s=PATIENCE_S) as batches:
        first = asyncio.create_task(batches.ask(1))
        await server.asked.wait()
        second = asyncio.create_task(batches.ask(2))
        await asyncio.sleep(0)
        server.may_answer.set()
        assert await first == 2
        await asyncio.sleep(0)
        assert server.batches == [[1]]
        second.cancel()


async def test_enough_of_them_wait_for_no_pace() -> None:
    server = Server()
    async with running(server, pace_s=PATIENCE_S, enough=3) as batches:
        assert await batches.ask(1) == 2
        later = [asyncio.create_task(batches.ask(number)) for number in (2, 3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert server.batches == [[1]]
        assert await batches.ask(4) == 8
        assert await asyncio.gather(*later) == [4, 6]
    assert server.batches == [[1], [2, 3, 4]]


async def test_a_batch_that_had_to_wait_waits_on_while_more_come() -> None:
    server, pace_is_over = Server(), asyncio.Event()

    def waits_on(waiting: Sequence[int]) -> bool:
        pace_is_over.set()
        return waiting == [2]

    async with running(
        server,
        pace_s=0.01,
        calm_s=PATIENCE_S,
        most_s=PATIENCE_S,
        waits_on=waits_on,
        enough=3,
    ) as batches:
        assert await batches.ask(1) == 2
        later = [batches.put(2)]
        await pace_is_over.wait()
        assert server.batches == [[1]]
        later += [batches.put(3), batches.put(4)]
        assert await asyncio.gather(*later) == [4, 6, 8]
    assert server.batches == [[1], [2, 3, 4]]


async def test_a_batch_waits_on_only_as_long_as_it_is_to() -> None:
    server, expected, pace_is_over = Server(), [4], asyncio.Event()

    def waits_on(waiting: Sequence[int]) -> bool:
        assert waiting == [2, 3]
        pace_is_over.set()
        return bool(expected)

    async with running(
        server,
        pace_s=0.01,
        calm_s=2 * PATIENCE_S,
        most_s=2 * PATIENCE_S,
        waits_on=waits_on,
    ) as batches:
        assert await batches.ask(1) == 2
        later = [batches.put(2), batches.put(3)]
        await pace_is_over.wait()
        batches.look()
        await asyncio.sleep(0)
        assert server.batches == [[1]], "something is expected still"

        expected.clear()
        batches.look()

        assert await asyncio.gather(*later) == [4, 6]


@pytest.mark.parametrize(
    "limits",
    [
        {"calm_s": 0.01, "most_s": 2 * PATIENCE_S},
        {"calm_s": 2 * PATIENCE_S, "most_s": 0.01},
    ],
    ids=["nobody-comes-any-more", "the-first-has-waited-long-enough"],
)
async def test_waiting_on_has_an_end(limits: dict[str, float]) -> None:
    server = Server()
    async with running(server, pace_s=0.01, **limits) as batches:
        assert [await batches.ask(number) for number in (1, 2)] == [2, 4]
