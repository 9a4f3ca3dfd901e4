from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hami_scheduler.ledger.node_lock_annotation import holder_of, is_owned_by, lock_keys, value_of
from hami_scheduler.ledger.node_locks import MirroredLocks, NodeLocks
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import (
    Allocation,
    ContainerGrant,
    DeviceShare,
)
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.domain.requests import Role
from hamicommon.errors import Conflict, InvalidRequest, Unavailable
from hamicommon.vendors.registry import Vendors

from tests.fakes.locks import FakeNodeLock
from tests.unit.scheduler.allocations import an_allocation

NODE = NodeName("n1")


class NoMirror:
    """Nodes with our agent have no annotation."""

    async def release(self, allocation: Allocation) -> None:
        """Do nothing."""


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
        "Failed to release the node lock; it expires on its own"
    ]


async def test_a_node_is_known_from_its_agents_answer_until_it_is_deleted() -> None:
    locks = locks_of(FakeNodeLock())
    assert not locks.is_known(NODE)

    locks.note(NODE, binds_late=False)
    assert locks.is_known(NODE)

    locks.on_node_deleted(NODE)
    assert not locks.is_known(NODE)


# --- locks on a Node object that another client keeps changing


WAIT_S = 0.5


class ChangingNode:
    """A Node object that changes between each look and patch."""

    def __init__(self) -> None:
        self.patches = 0

    async def get(self, name: str) -> dict[str, Any]:
        """Return a new version at each look."""
        return {"metadata": {"name": name, "resourceVersion": str(self.patches)}}

    async def annotate(self, *_args: Any, **_kwargs: Any) -> None:
        """Refuse the patch, as the API server does."""
        self.patches += 1
        raise Conflict("the object has been modified")


async def test_a_node_that_changes_at_each_try_is_given_up_at_the_deadline() -> None:
    node = ChangingNode()
    locks = MirroredLocks(
        nodes=cast(Any, node),
        pods=cast(Any, None),
        lock=cast(Any, None),
        store=cast(Any, None),
        vendors=Vendors.from_config(DeviceConfig(), enable_ascend=True),
    )
    chip = DeviceShare(uuid=GpuUuid("npu-0"), vendor="Ascend910B3", memory_mib=1, core_percent=1)
    container = ContainerGrant(index=0, name="c", role="app", shares=(chip,))

    async with asyncio.timeout(10 * WAIT_S):
        with pytest.raises(Conflict, match="changed at every attempt to lock it"):
            await locks.acquire(an_allocation(containers=(container,)), wait_s=WAIT_S)

    assert 1 < node.patches < 10


# --- values of node locks in annotations (protocol 2.5, 1.3)


NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
HAMI, MLU = "hami.io/mutex.lock", "cambricon.com/dsmlu.lock"
VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True)


def allocation(*vendors: str, role: Role = "app") -> Allocation:
    shares = tuple(
        DeviceShare(uuid=GpuUuid(f"c-{v}"), vendor=v, memory_mib=1, core_percent=1) for v in vendors
    )
    granted = ContainerGrant(index=0, name="c", role=role, shares=shares)
    return an_allocation(namespace="ns", containers=(granted,))


@pytest.mark.parametrize(
    ("vendors", "role", "keys"),
    [
        pytest.param(("Ascend910B3",), "app", (HAMI,), id="one"),
        pytest.param(("Ascend910B3", "NVIDIA"), "app", (HAMI,), id="two-on-one-lock"),
        pytest.param(("AWSNeuron",), "app", (), id="never-locks"),
        pytest.param(("NVIDIA",), "init", (HAMI,), id="init-container-alone"),
    ],
)
def test_the_locks_are_those_of_the_vendors_used(
    vendors: tuple[str, ...], role: Role, keys: tuple[str, ...]
) -> None:
    assert lock_keys(allocation(*vendors, role=role), VENDORS) == keys


def test_a_lock_is_written_as_hami_writes_it() -> None:
    assert value_of(HAMI, allocation(), NOW) == "2026-05-01T12:00:00Z,ns,p"
    assert value_of(MLU, allocation(), NOW) == "2026-05-01T12:00:00Z"


@pytest.mark.parametrize(
    ("key", "value", "age_s", "is_held"),
    [
        pytest.param(HAMI, "{at},ns,q", 299, True, id="held"),
        pytest.param(HAMI, "{at},ns,q", 301, False, id="past-five-minutes"),
        pytest.param(HAMI, "{at}", 299, True, id="legacy-held"),
        pytest.param(MLU, "{at}", 119, True, id="mlu-held"),
        pytest.param(MLU, "{at}", 121, False, id="mlu-past-two-minutes"),
        pytest.param(MLU, "", 0, False, id="absent"),
    ],
)
def test_a_lock_is_held_for_its_lifetime(key: str, value: str, age_s: float, is_held: bool) -> None:
    at = NOW - timedelta(seconds=age_s)

    assert (holder_of(key, value.format(at=at.isoformat()), NOW) is not None) is is_held


def test_what_is_no_lock_is_an_error() -> None:
    with pytest.raises(InvalidRequest):
        holder_of(HAMI, "yesterday,ns,p", NOW)


@pytest.mark.parametrize(
    ("key", "value", "mine"),
    [
        pytest.param(HAMI, "2026-05-01T12:00:00Z,ns,p", True, id="ours"),
        pytest.param(HAMI, "2026-05-01T12:00:00Z,ns,pp", False, id="another-pod"),
        pytest.param(HAMI, "2026-05-01T12:00:00Z", None, id="legacy"),
        pytest.param(MLU, "2026-05-01T12:00:00Z", None, id="mlu"),
        pytest.param(HAMI, "junk", False, id="junk"),
    ],
)
def test_a_lock_belongs_to_the_pod_it_names(key: str, value: str, mine: bool | None) -> None:
    assert is_owned_by(key, value, allocation()) is mine
