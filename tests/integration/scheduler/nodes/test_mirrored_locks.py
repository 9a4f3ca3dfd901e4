"""The lock on a Node object, which other vendors' plugins and other schedulers observe and free."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.scheduler.nodes.other_nodes import LOCK, chip_pod, placed, with_chips
from tests.integration.scheduler.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_the_plugins_removal_of_the_lock_lets_the_next_pod_bind(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0", "npu-1")
    first, second = await chip_pod(world, "first"), await chip_pod(world, "second")
    await placed(replica, first, node)
    await placed(replica, second, node)
    assert await replica.bind(first, node.name) == ""

    waiting = asyncio.create_task(replica.bind(second, node.name))
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done
    await node.annotate(**{LOCK: None})

    assert await waiting == ""
    assert (await node.annotations())[LOCK].endswith(",default,second")


async def test_a_lock_of_another_scheduler_is_respected_until_it_ends(world: World) -> None:
    replica = await world.replica(enable_ascend=True, bind_timeout_s=6.0)
    node = await with_chips(world, replica, "npu-0")
    other = await chip_pod(world, "others")
    pod = await chip_pod(world, "slice")
    now = datetime.now(UTC)
    await node.annotate(**{LOCK: f"{now:%Y-%m-%dT%H:%M:%SZ},default,others"})
    await placed(replica, pod, node)

    error = await replica.bind(pod, node.name)
    assert "default/others" in error
    assert error.endswith("node lock contention")
    assert (await node.annotations())[LOCK].endswith(",default,others")
    assert (await world.rows(pod))[-1]["state"] == "failed"

    old = now - timedelta(minutes=6)
    await node.annotate(**{LOCK: f"{old:%Y-%m-%dT%H:%M:%SZ},default,others"})
    await placed(replica, pod, node)
    assert await replica.bind(pod, node.name) == ""
    assert (await node.annotations())[LOCK].endswith(",default,slice")
    await world.delete(other)


async def test_a_lock_of_a_pod_that_is_gone_is_taken_over(world: World) -> None:
    replica = await world.replica(enable_ascend=True)
    node = await with_chips(world, replica, "npu-0")
    await node.annotate(**{LOCK: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},default,no-such-pod"})
    pod = await chip_pod(world, "slice")
    await placed(replica, pod, node)

    assert await replica.bind(pod, node.name) == ""
    await world.delete(pod)
    await world.until(pod, "released")

    async def unlocked() -> bool:
        return LOCK not in await node.annotations()

    await eventually(unlocked, "our own lock to be removed")
