from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
from hami_scheduler.ledger.node_locks import NodeLocks
from hami_scheduler.ledger.shared_holds import JOINED_WITHIN_S, SharedHolds, shape_of
from hamicommon.domain.allocate_order import AllocateOrder
from hamicommon.domain.allocations import Allocation, ContainerGrant, DeviceShare
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import Conflict
from hamicommon.ledger.model import LockHolder
from hamicommon.testing.locks import FakeNodeLock

from tests.unit.scheduler.allocations import an_allocation

NODE = NodeName("n1")


class CountingLock(FakeNodeLock):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    async def acquire(self, node: NodeName, holder: Any, *, wait_s: float) -> None:
        """See the port."""
        await super().acquire(node, holder, wait_s=wait_s)
        self.taken += 1


class NoMirror:
    """Nodes with our agent have no annotation."""

    async def release(self, allocation: Allocation) -> None:
        """Nothing is there."""


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now_s


def pod(number: int, *, card: str = "GPU-a", **share: Any) -> Allocation:
    values: dict[str, Any] = {"vendor": "NVIDIA", "memory_mib": 1024, "core_percent": 10}
    slices = (DeviceShare(uuid=GpuUuid(card), **values | share),)
    return an_allocation(
        id=AllocationId(f"id-{number}"),
        token=number,
        containers=(ContainerGrant(index=0, name="main", role="app", shares=slices),),
    )


def locks_of(lock: FakeNodeLock, order: AllocateOrder = AllocateOrder.ALIKE) -> NodeLocks:
    locks = NodeLocks(lock, cast(Any, NoMirror()), clock=Clock())
    locks.note_order(NODE, order)
    return locks


def soon() -> float:
    return time.perf_counter() + 0.2


async def test_pods_with_equal_grants_are_on_their_way_together() -> None:
    lock = CountingLock()
    locks = locks_of(lock)

    await asyncio.gather(*(locks.acquire(pod(number), deadline=soon()) for number in range(1, 9)))

    assert lock.taken == 1


async def test_another_pod_waits_until_the_last_of_them_has_its_cards() -> None:
    lock = CountingLock()
    locks = locks_of(lock)
    for number in (1, 2):
        await locks.acquire(pod(number), deadline=soon())
    other = pod(3, card="GPU-b")

    await locks.release(pod(1))
    with pytest.raises(Conflict):
        await locks.acquire(other, deadline=soon())
    await locks.release(pod(2))
    await locks.acquire(other, deadline=soon())

    assert await lock.release(NODE, 3)


async def test_pods_of_one_template_are_on_their_way_together_whatever_their_cards() -> None:
    lock = CountingLock()
    locks = locks_of(lock, AllocateOrder.TEMPLATE)
    locks.takes_any_card = lambda _: True

    for number, card in enumerate(("GPU-a", "GPU-b", "GPU-a"), start=1):
        await locks.acquire(pod(number, card=card), deadline=soon())
    assert lock.taken == 1

    with pytest.raises(Conflict):
        await locks.acquire(pod(4, memory_mib=2048), deadline=soon())


async def test_a_pod_that_chose_its_card_goes_with_those_of_its_card_alone() -> None:
    lock = CountingLock()
    locks = locks_of(lock, AllocateOrder.TEMPLATE)
    await locks.acquire(pod(1), deadline=soon())

    await locks.acquire(pod(2), deadline=soon())
    with pytest.raises(Conflict):
        await locks.acquire(pod(3, card="GPU-b"), deadline=soon())


async def test_locks_taken_before_a_node_was_known_to_bind_late_are_freed() -> None:
    lock = CountingLock()
    locks = locks_of(lock, AllocateOrder.ONE_BY_ONE)
    await locks.acquire(pod(1), deadline=soon())
    waiting = asyncio.create_task(locks.acquire(pod(2, card="GPU-b"), deadline=soon()))
    await locks.release(pod(1))
    locks.note_order(NODE, AllocateOrder.ANY)
    await waiting

    await locks.release(pod(2, card="GPU-b"))

    assert await lock.holder(NODE) is None


async def test_a_node_that_binds_late_is_asked_for_no_lock_that_was_not_taken() -> None:
    lock = CountingLock()
    locks = locks_of(lock, AllocateOrder.ANY)
    await lock.acquire(
        NODE,
        LockHolder(pod_uid=PodUid("u"), allocation_id=AllocationId("id-1"), token=1),
        wait_s=0.1,
    )

    await locks.release(pod(1))

    assert await lock.holder(NODE) is not None


async def test_a_report_that_came_twice_frees_nobody_elses_hold() -> None:
    lock = CountingLock()
    locks = locks_of(lock)
    for number in (1, 2):
        await locks.acquire(pod(number), deadline=soon())

    await locks.release(pod(1))
    await locks.release(pod(1))

    assert await lock.holder(NODE) is not None


async def test_a_token_that_another_replica_had_the_report_of_leaves_the_hold() -> None:
    lock = CountingLock()
    locks = locks_of(lock)
    for number in (1, 2):
        await locks.acquire(pod(number), deadline=soon())

    await locks.release(pod(1))
    await locks.freed_elsewhere(NODE, 2)

    assert await lock.holder(NODE) is None


async def test_a_report_that_another_replica_took_of_the_first_one_lets_others_go() -> None:
    """Only the order of answers suffers (`tests/simulation`: promises hold without any lock)."""
    lock = CountingLock()
    here, elsewhere = locks_of(lock), locks_of(lock)
    for number in (1, 2):
        await here.acquire(pod(number), deadline=soon())

    await elsewhere.release_token(NODE, 1)
    await elsewhere.acquire(pod(3, card="GPU-b"), deadline=soon())
    await here.release(pod(2))

    # The hold of the second one does not free the third one's.
    assert await lock.release(NODE, 3)


async def test_a_release_that_is_heard_of_twice_asks_nobody() -> None:
    lock = CountingLock()
    locks = locks_of(lock)
    await locks.acquire(pod(1), deadline=soon())
    await locks.release(pod(1))
    await locks.acquire(pod(2, card="GPU-b"), deadline=soon())

    await locks.freed_elsewhere(NODE, 1)

    assert (await lock.holder(NODE)) is not None


async def test_where_the_agent_does_not_report_so_each_pod_goes_alone() -> None:
    locks = locks_of(CountingLock(), AllocateOrder.ONE_BY_ONE)
    await locks.acquire(pod(1), deadline=soon())

    with pytest.raises(Conflict):
        await locks.acquire(pod(2), deadline=soon())


async def test_who_waits_for_others_tries_itself_when_they_give_up() -> None:
    lock = CountingLock()
    locks = locks_of(lock)
    await locks.acquire(pod(1, card="GPU-b"), deadline=soon())
    first = asyncio.create_task(locks.acquire(pod(2), deadline=time.perf_counter() + 0.1))
    second = asyncio.create_task(locks.acquire(pod(3), deadline=time.perf_counter() + 30))

    with pytest.raises(Conflict):
        await first
    await locks.release(pod(1, card="GPU-b"))
    await second

    assert await lock.release(NODE, 3)


def test_a_hold_can_be_joined_for_a_moment_only() -> None:
    clock = Clock()
    holds = SharedHolds(clock)
    holds.begin(pod(1), shape_of(pod(1)))

    clock.now_s = JOINED_WITHIN_S / 2
    assert holds.join(pod(2), shape_of(pod(2)))
    clock.now_s = JOINED_WITHIN_S
    assert not holds.join(pod(3), shape_of(pod(3)))


def test_a_binding_that_was_taken_over_leaves_by_its_new_token() -> None:
    holds = SharedHolds(Clock())
    first = pod(1)
    holds.begin(first, shape_of(first))
    again = an_allocation(id=first.id, token=9, containers=first.containers)

    assert holds.join(again, shape_of(again))

    assert holds.leave(NODE, 9) == 1


@pytest.mark.parametrize(
    "other",
    [
        pod(2, card="GPU-b"),
        pod(2, memory_mib=2048),
        pod(2, core_percent=20),
        pod(2, slots=2),
    ],
    ids=["card", "memory", "cores", "slots"],
)
def test_grants_that_differ_are_not_alike(other: Allocation) -> None:
    assert shape_of(pod(1)) == shape_of(pod(2))
    assert shape_of(pod(1)) != shape_of(other)


def test_a_grant_of_which_only_its_vendor_understands_a_part_is_like_no_other() -> None:
    assert shape_of(pod(1, detail={"profile": "1g.5gb"})) == ""


async def test_a_node_is_known_once_its_agent_has_reported_whatever_that_is() -> None:
    locks = NodeLocks(FakeNodeLock(), cast(Any, NoMirror()), clock=Clock())
    assert not locks.knows(NODE)

    locks.note_order(NODE, AllocateOrder.ONE_BY_ONE)

    assert locks.knows(NODE)
