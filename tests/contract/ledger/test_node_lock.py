"""What every NodeLock promises: the same cases on the fake, Redis, and Redis being away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
import redis.asyncio
from hami_scheduler.adapters.postgres.housekeeping import PostgresNodeLease
from hami_scheduler.adapters.redis.node_lock import OPEN_S, RedisNodeLock, open_node_lock
from hami_scheduler.ports import NodeLock
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import Conflict
from hamicommon.ledger.database import open_database
from hamicommon.ledger.model import LockHolder
from hamicommon.settings import PostgresSettings, RedisSettings
from hamicommon.testing.locks import FakeNodeLock

from tests.waiting import PATIENCE_S, eventually

NODE = NodeName("node-a")
NOBODY_LISTENS = "redis://127.0.0.1:1/0"


def holder(number: int, *, token: int | None = None) -> LockHolder:
    return LockHolder(
        pod_uid=PodUid(f"pod-{number}"),
        allocation_id=AllocationId(f"00000000-0000-0000-0000-{number:012d}"),
        token=number if token is None else token,
    )


@pytest.fixture(
    params=[
        "fake",
        pytest.param("redis", marks=pytest.mark.integration),
        pytest.param("redis-away", marks=pytest.mark.integration),
    ]
)
async def lock(request: pytest.FixtureRequest) -> AsyncIterator[NodeLock]:
    if request.param == "fake":
        yield FakeNodeLock(lock_s=30)
        return
    async with opened_lock(request, away=request.param == "redis-away") as opened:
        yield opened


@asynccontextmanager
async def opened_lock(
    request: pytest.FixtureRequest,
    *,
    away: bool,
    done: Collection[int] = (),
    url: str | None = None,
) -> AsyncIterator[NodeLock]:
    """The real lock; for the ledger the tokens `done` need it no more."""
    url = url or (NOBODY_LISTENS if away else request.getfixturevalue("redis_url"))
    dsn = request.getfixturevalue("postgres_dsn")

    async def still_needed(held: LockHolder) -> bool:
        return held.token not in done

    async with (
        open_database(PostgresSettings(dsn=dsn), application="test") as database,
        open_node_lock(
            RedisSettings(url=url),
            PostgresNodeLease(database, lock_s=30),
            lock_s=30,
            still_needed=still_needed,
        ) as opened,
    ):
        yield opened


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


async def test_one_pod_holds_a_node(lock: NodeLock) -> None:
    await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)

    assert await lock.holder(NODE) == holder(1)
    with pytest.raises(Conflict):
        await lock.acquire(NODE, holder(2), wait_s=0.1)
    assert await lock.holder(NODE) == holder(1)


async def test_nodes_are_apart(lock: NodeLock) -> None:
    await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
    await lock.acquire(NodeName("node-b"), holder(2), wait_s=PATIENCE_S)

    assert await lock.holder(NODE) == holder(1)


async def test_only_the_token_that_holds_it_frees_it(lock: NodeLock) -> None:
    await lock.acquire(NODE, holder(7), wait_s=PATIENCE_S)

    assert not await lock.release(NODE, 6)
    assert await lock.holder(NODE) == holder(7)
    assert await lock.release(NODE, 7)
    assert await lock.holder(NODE) is None
    assert not await lock.release(NODE, 7)


async def test_the_same_allocation_takes_over_with_its_new_token(lock: NodeLock) -> None:
    await lock.acquire(NODE, holder(1, token=5), wait_s=PATIENCE_S)
    await lock.acquire(NODE, holder(1, token=9), wait_s=PATIENCE_S)

    assert await lock.holder(NODE) == holder(1, token=9)
    assert not await lock.release(NODE, 5)


async def test_a_waiter_gets_it_when_it_is_freed(lock: NodeLock) -> None:
    await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
    waiter = asyncio.create_task(lock.acquire(NODE, holder(2), wait_s=PATIENCE_S))
    await asyncio.sleep(0)

    await lock.release(NODE, 1)
    await waiter

    assert await lock.holder(NODE) == holder(2)


async def test_waiters_get_it_one_after_the_other(lock: NodeLock) -> None:
    served: list[int] = []

    async def hold(number: int) -> None:
        await lock.acquire(NODE, holder(number), wait_s=PATIENCE_S)
        assert await lock.holder(NODE) == holder(number)
        served.append(number)
        await lock.release(NODE, number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(1, 9):
            tasks.create_task(hold(number))

    assert sorted(served) == list(range(1, 9))


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
