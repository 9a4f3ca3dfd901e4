"""Promises of every NodeLock: the same cases on the fake and on Redis."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hami_scheduler.adapters.redis import open_node_lock
from hami_scheduler.ports.cluster import NodeLock
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict
from hamicommon.settings import RedisSettings

from tests.contract.ledger.node_locks import LOCK_S, NODE, holder
from tests.fakes.locks import FakeNodeLock
from tests.waiting import PATIENCE_S


@pytest.fixture(
    params=[
        "fake",
        pytest.param("redis", marks=pytest.mark.integration),
    ]
)
async def lock(request: pytest.FixtureRequest) -> AsyncIterator[NodeLock]:
    if request.param == "fake":
        yield FakeNodeLock(lock_s=LOCK_S)
        return
    url = request.getfixturevalue("redis_url")
    async with open_node_lock(RedisSettings(url=url), lock_s=LOCK_S) as opened:
        yield opened


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


async def test_an_older_token_of_the_same_allocation_waits(lock: NodeLock) -> None:
    await lock.acquire(NODE, holder(1, token=9), wait_s=PATIENCE_S)

    with pytest.raises(Conflict):
        await lock.acquire(NODE, holder(1, token=5), wait_s=0.1)
    assert await lock.holder(NODE) == holder(1, token=9)


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
