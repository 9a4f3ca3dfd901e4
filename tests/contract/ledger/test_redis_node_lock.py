"""Promises of the lock in Redis only: replicas, odd keys, a Redis that fails."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from hami_scheduler.adapters.redis import POLL_INTERVAL_S, RedisNodeLock, open_node_lock
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, Unavailable
from hamicommon.settings import RedisSettings

from tests.contract.ledger.node_locks import KEY, LOCK_S, NODE, holder
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration


@pytest.fixture
async def lock(redis_url: str) -> AsyncIterator[RedisNodeLock]:
    async with open_node_lock(RedisSettings(url=redis_url), lock_s=LOCK_S) as opened:
        yield opened


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.from_url(redis_url) as opened:
        yield opened


async def test_redis_that_lost_its_keys_costs_the_order_and_nothing_else(
    lock: RedisNodeLock, client: redis.asyncio.Redis
) -> None:
    await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
    waiter = asyncio.create_task(lock.acquire(NODE, holder(2), wait_s=PATIENCE_S))
    await client.flushall()

    await waiter

    # A late release by the first holder does not free the lock of another.
    assert not await lock.release(NODE, 1)
    assert await lock.holder(NODE) == holder(2)


async def test_replicas_that_ask_at_the_same_moment_get_one_lock_once(
    lock: RedisNodeLock, redis_url: str
) -> None:
    async with open_node_lock(RedisSettings(url=redis_url), lock_s=LOCK_S) as other:
        both = await asyncio.gather(
            lock.acquire(NODE, holder(1), wait_s=0.5),
            other.acquire(NODE, holder(2), wait_s=0.5),
            return_exceptions=True,
        )

        assert [type(each) for each in both].count(Conflict) == 1
        winner = both.index(None) + 1
        assert await lock.holder(NODE) == holder(winner)


async def test_a_lock_that_another_replica_frees_is_noticed(
    lock: RedisNodeLock, redis_url: str
) -> None:
    async with open_node_lock(RedisSettings(url=redis_url), lock_s=LOCK_S) as other:
        await other.acquire(NODE, holder(1), wait_s=PATIENCE_S)
        waiter = asyncio.create_task(lock.acquire(NODE, holder(2), wait_s=PATIENCE_S))
        done, _ = await asyncio.wait([waiter], timeout=2 * POLL_INTERVAL_S)
        assert not done

        assert await other.release(NODE, 1)

        await waiter


async def test_a_lock_expires_after_the_time_of_the_setting(redis_url: str) -> None:
    async with open_node_lock(RedisSettings(url=redis_url), lock_s=0.3) as lock:
        await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)

        await lock.acquire(NODE, holder(2), wait_s=PATIENCE_S)

        assert not await lock.release(NODE, 1)


async def test_a_lock_that_a_hanging_redis_gives_too_late_holds_up_nobody(
    redis_url: str, client: redis.asyncio.Redis
) -> None:
    server = (await client.info("server"))["process_id"]
    settings = RedisSettings(url=redis_url, timeout_s=0.2)
    async with open_node_lock(settings, lock_s=LOCK_S) as lock:
        assert await lock.holder(NODE) is None  # it is connected now
        os.kill(server, signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable):
                await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
        finally:
            os.kill(server, signal.SIGCONT)
        await eventually(lambda: lock.holder(NODE), "Redis to carry out what it was sent")
        assert await lock.holder(NODE) == holder(1)

        await lock.acquire(NODE, holder(2), wait_s=1.0)

        assert await lock.holder(NODE) == holder(2)
        # One that has the lock again keeps it.
        await lock.release(NODE, 2)
        await lock.acquire(NODE, holder(2), wait_s=1.0)
        with pytest.raises(Conflict):
            await lock.acquire(NODE, holder(3), wait_s=0.2)


async def test_a_waiter_that_is_cancelled_holds_up_nobody(lock: RedisNodeLock) -> None:
    await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
    gone, stays = (
        asyncio.create_task(lock.acquire(NODE, holder(n), wait_s=PATIENCE_S)) for n in (2, 3)
    )
    await asyncio.sleep(0)
    gone.cancel()
    await lock.release(NODE, 1)

    await stays

    assert await lock.holder(NODE) == holder(3)


async def test_nodes_that_nobody_waits_for_are_forgotten(lock: RedisNodeLock) -> None:
    for number in range(20):
        await lock.acquire(NodeName(f"node-{number}"), holder(number), wait_s=PATIENCE_S)
    with pytest.raises(Conflict):
        await lock.acquire(NodeName("node-1"), holder(99), wait_s=0.05)

    assert not lock._turns


@pytest.mark.parametrize("garbage", ["nonsense", "7", "[]", '{"token": "x"}', "\xff"])
async def test_a_value_that_no_scheduler_wrote_is_named_and_replaced(
    lock: RedisNodeLock,
    client: redis.asyncio.Redis,
    caplog: pytest.LogCaptureFixture,
    garbage: str,
) -> None:
    await client.set(KEY, garbage, ex=300)

    with caplog.at_level(logging.WARNING):
        await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)

    assert await lock.holder(NODE) == holder(1)
    [line] = caplog.records
    assert vars(line)["key"] == KEY


async def test_a_key_of_another_type_is_named_and_replaced(
    lock: RedisNodeLock, client: redis.asyncio.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await client.hset(KEY, "token", "1")

    await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)

    assert await lock.holder(NODE) == holder(1)
    [line] = caplog.records
    assert vars(line)["type"] == "hash"


async def test_a_lock_that_would_never_expire_is_named_and_replaced(
    lock: RedisNodeLock, client: redis.asyncio.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
    await client.persist(KEY)

    await lock.acquire(NODE, holder(2), wait_s=PATIENCE_S)

    assert await lock.holder(NODE) == holder(2)
    assert 0 < await client.pttl(KEY) <= LOCK_S * 1000
    [line] = caplog.records
    assert vars(line)["expires"] is False


async def test_freeing_a_key_that_is_no_lock_of_ours_is_no_outage(
    lock: RedisNodeLock, client: redis.asyncio.Redis
) -> None:
    await client.rpush(KEY, "x")

    assert not await lock.release(NODE, 1)
    assert await lock.holder(NODE) is None


async def test_while_redis_is_unavailable_no_lock_is_taken_and_the_error_names_it() -> None:
    async with open_node_lock(RedisSettings(url="redis://127.0.0.1:1/0"), lock_s=LOCK_S) as lock:
        with pytest.raises(Unavailable, match=r"Redis is unavailable .* The pod will be retried"):
            await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
        with pytest.raises(Unavailable, match="Redis is unavailable"):
            await lock.release(NODE, 1)


async def test_a_redis_that_hangs_is_waited_for_once_by_all_that_wait_for_a_node() -> None:
    asked: list[bytes] = []

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        async with open_node_lock(RedisSettings(url=url, timeout_s=0.2), lock_s=LOCK_S) as lock:
            errors = await asyncio.gather(
                *(lock.acquire(NODE, holder(n), wait_s=PATIENCE_S) for n in range(20)),
                return_exceptions=True,
            )
            tried = len(asked)
            with pytest.raises(Unavailable):
                await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)

        assert {str(each).split(" (")[0] for each in errors} == {"Redis is unavailable"}
        assert (tried, len(asked)) == (1, 2)


async def test_a_redis_that_refuses_is_not_called_unavailable(
    lock: RedisNodeLock, client: redis.asyncio.Redis
) -> None:
    before = (await client.config_get("maxmemory"))["maxmemory"]
    await client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unavailable, match=r"Redis refused the node lock .*memory"):
            await lock.acquire(NODE, holder(1), wait_s=PATIENCE_S)
    finally:
        await client.config_set("maxmemory", before)
