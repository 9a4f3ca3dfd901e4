"""What the lock in Redis promises beside: many in one call, replicas, a Redis that fails."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis.asyncio
from hami_scheduler.adapters.redis.node_lock import OPEN_S, RedisNodeLock
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict

from tests.contract.ledger.node_locks import NODE, holder, opened_lock
from tests.waiting import PATIENCE_S, eventually


@pytest.mark.integration
@pytest.mark.parametrize("away", [False, True], ids=["redis", "redis-away"])
async def test_a_holder_that_the_ledger_knows_to_be_done_holds_up_nobody(
    request: pytest.FixtureRequest, away: bool
) -> None:
    async with opened_lock(request, away=away, done=[1]) as lock:
        await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)

        await lock.acquire(NODE, holder(2), wait_s=PATIENCE_S)

        assert await lock.holder(NODE) == holder(2)
        with pytest.raises(Conflict):
            await lock.acquire(NODE, holder(3), wait_s=2.5)


@pytest.mark.integration
async def test_redis_that_lost_its_keys_costs_the_order_and_nothing_else(
    request: pytest.FixtureRequest, redis_url: str
) -> None:
    async with opened_lock(request, away=False) as lock:
        await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
        waiter = asyncio.create_task(lock.acquire(NODE, holder(2), wait_s=PATIENCE_S))
        async with redis.asyncio.from_url(redis_url) as client:
            await client.flushall()

        await waiter

        # What the first holder does late frees nobody else's lock.
        assert not await lock.release(NODE, 1)
        assert await lock.holder(NODE) == holder(2)


@pytest.mark.integration
async def test_a_redis_that_hangs_is_asked_once_and_then_left_alone_for_a_while(
    request: pytest.FixtureRequest,
) -> None:
    asked: list[bytes] = []

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        began_s = time.monotonic()
        async with opened_lock(request, away=True, url=f"redis://127.0.0.1:{port}/0") as lock:
            for number in range(1, 9):
                await lock.acquire(NODE, holder(number), wait_s=PATIENCE_S)
                assert await lock.holder(NODE) == holder(number)
                assert await lock.release(NODE, number)

        took_s = time.monotonic() - began_s
        assert 1 <= len(asked) <= 1 + took_s / OPEN_S, "every operation waited for it"


@pytest.mark.integration
async def test_what_is_asked_for_in_one_turn_goes_as_one_call(
    request: pytest.FixtureRequest, redis_url: str
) -> None:
    nodes = [NodeName(f"turn-{number}") for number in range(20)]
    async with (
        opened_lock(request, away=False) as lock,
        redis.asyncio.from_url(redis_url) as client,
    ):
        await lock.acquire(NODE, holder(99), wait_s=PATIENCE_S)
        await lock.release(NODE, 99)

        async def calls() -> int:
            counted = await client.info("commandstats")
            return int(counted["cmdstat_evalsha"]["calls"])

        before = await calls()
        async with asyncio.TaskGroup() as tasks:
            for number, node in enumerate(nodes):
                tasks.create_task(lock.acquire(node, holder(number), wait_s=PATIENCE_S))
        assert [await lock.holder(node) for node in nodes] == [holder(n) for n in range(20)]
        freed = await asyncio.gather(
            *(lock.release(node, number % 10) for number, node in enumerate(nodes))
        )

        assert freed == [True] * 10 + [False] * 10
        assert await calls() == before + 2
        assert [await lock.holder(node) for node in nodes[9:11]] == [None, holder(10)]


@pytest.mark.integration
async def test_replicas_that_ask_in_the_same_turn_get_one_lock_once(
    request: pytest.FixtureRequest,
) -> None:
    async with opened_lock(request, away=False) as mine, opened_lock(request, away=False) as other:
        both = await asyncio.gather(
            mine.acquire(NODE, holder(1), wait_s=0.5),
            other.acquire(NODE, holder(2), wait_s=0.5),
            return_exceptions=True,
        )

        assert [type(each) for each in both].count(Conflict) == 1
        winner = both.index(None) + 1
        assert await mine.holder(NODE) == holder(winner)


@pytest.mark.integration
async def test_who_was_cancelled_costs_those_that_asked_with_it_nothing(
    request: pytest.FixtureRequest,
) -> None:
    async with opened_lock(request, away=False) as lock:
        gone, stays = (
            asyncio.create_task(lock.acquire(NodeName(f"c{n}"), holder(n), wait_s=PATIENCE_S))
            for n in (1, 2)
        )
        await asyncio.sleep(0)
        gone.cancel()

        await stays

        assert gone.cancelled()
        assert await lock.holder(NodeName("c2")) == holder(2)


@pytest.mark.integration
async def test_releases_are_heard_from_replicas_of_before_as_well(
    request: pytest.FixtureRequest, redis_url: str
) -> None:
    heard: asyncio.Queue[tuple[NodeName, int]] = asyncio.Queue()

    async def on_freed(node: NodeName, token: int) -> None:
        heard.put_nowait((node, token))

    async with opened_lock(request, away=False) as lock:
        assert isinstance(lock, RedisNodeLock)
        listening = asyncio.create_task(lock.listen(on_freed))
        async with redis.asyncio.from_url(redis_url) as client:

            async def published() -> bool:
                return bool(await client.publish("hami:nodelock:released", "node-b 4"))

            await eventually(published, "the lock to listen")
            assert await heard.get() == ("node-b", 4)
            await client.publish("hami:nodelock:released", "node-b")
            await client.publish("hami:nodelock:freed", "node-b 5\nnode-c 6")

        assert [await heard.get() for _ in range(3)] == [
            ("node-b", 0),
            ("node-b", 5),
            ("node-c", 6),
        ]
        listening.cancel()


@pytest.mark.integration
async def test_a_token_that_is_given_back_under_another_ones_hold_is_announced(
    request: pytest.FixtureRequest, redis_url: str
) -> None:
    heard: asyncio.Queue[int] = asyncio.Queue()

    async def on_freed(node: NodeName, token: int) -> None:
        assert node == NODE
        heard.put_nowait(token)

    async with opened_lock(request, away=False) as mine, opened_lock(request, away=False) as other:
        assert isinstance(mine, RedisNodeLock)
        listening = asyncio.create_task(mine.listen(on_freed))
        async with redis.asyncio.from_url(redis_url) as client:

            async def subscribed() -> bool:
                [(_, count)] = await client.pubsub_numsub("hami:nodelock:freed")
                return bool(count)

            await eventually(subscribed, "the lock to listen")
        await mine.acquire(NODE, holder(1), wait_s=PATIENCE_S)

        assert not await other.release(NODE, 2)
        assert await other.release(NODE, 1)

        assert [await heard.get(), await heard.get()] == [2, 1]
        listening.cancel()
