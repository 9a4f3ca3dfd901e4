from __future__ import annotations

import time
from typing import Any, cast

import pytest
from hami_scheduler.ledger.node_locks import NodeLocks
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, NodeName
from hamicommon.errors import Conflict, Unavailable

from tests.fakes.locks import FakeNodeLock
from tests.unit.scheduler.allocations import an_allocation

NODE = NodeName("n1")


class NoMirror:
    """Nodes with our agent have no annotation."""

    async def release(self, allocation: Allocation) -> None:
        """Nothing is there."""


class UnavailableLock(FakeNodeLock):
    """Redis does not answer."""

    async def release(self, node: NodeName, token: int) -> bool:
        """See the port."""
        raise Unavailable("Redis is unavailable")


def pod(number: int) -> Allocation:
    return an_allocation(id=AllocationId(f"id-{number}"), token=number)


def locks_of(lock: FakeNodeLock) -> NodeLocks:
    return NodeLocks(lock, cast(Any, NoMirror()))


def soon() -> float:
    return time.perf_counter() + 0.2


async def test_pods_of_a_node_go_one_by_one_even_with_equal_grants() -> None:
    lock = FakeNodeLock()
    locks = locks_of(lock)
    locks.note(NODE, binds_late=False)
    await locks.acquire(pod(1), deadline=soon())

    with pytest.raises(Conflict):
        await locks.acquire(pod(2), deadline=soon())
    await locks.release(pod(1))
    await locks.acquire(pod(2), deadline=soon())

    assert await lock.release(NODE, 2)


async def test_a_report_that_comes_twice_frees_nobody_elses_lock() -> None:
    lock = FakeNodeLock()
    locks = locks_of(lock)
    await locks.acquire(pod(1), deadline=soon())
    await locks.release(pod(1))
    await locks.acquire(pod(2), deadline=soon())

    await locks.release(pod(1))
    await locks.release_token(NODE, 1)

    assert await lock.release(NODE, 2)


async def test_a_node_that_binds_late_needs_no_lock_and_is_asked_for_none() -> None:
    locks = locks_of(UnavailableLock())
    assert locks.is_required(pod(1))

    locks.note(NODE, binds_late=True)

    assert not locks.is_required(pod(1))
    await locks.release(pod(1))
    await locks.release_token(NODE, 1)


async def test_a_lock_that_cant_be_freed_is_left_to_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await locks_of(UnavailableLock()).release(pod(1))

    assert [record.message for record in caplog.records] == [
        "Failed to free the node lock, it expires by itself"
    ]


async def test_a_node_is_known_from_its_agents_answer_until_it_is_deleted() -> None:
    locks = locks_of(FakeNodeLock())
    assert not locks.is_known(NODE)

    locks.note(NODE, binds_late=False)
    assert locks.is_known(NODE)

    locks.on_node_deleted(NODE)
    assert not locks.is_known(NODE)
