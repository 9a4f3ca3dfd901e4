"""The node lock: no pod waits for longer than another is between bind and Allocate."""

from __future__ import annotations

import asyncio

import pytest
from hamicommon import events

from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration


async def test_the_node_lock_is_handed_on_when_the_node_reports(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    first, second = await world.pod("a"), await world.pod("b")
    for pod in (first, second):
        await replica.filter(pod, "n1")
    assert await replica.bind(first, "n1") == ""

    waiting = asyncio.create_task(replica.bind(second, "n1"))
    await world.until(second, "binding")
    await world.publish_report(events.Allocated, await world.until(first, "bound"))

    assert await waiting == ""


async def test_where_slices_are_bound_late_no_pod_waits_for_another_ones_report(
    world: World,
) -> None:
    world.late.add("n1")
    replica = await world.replica()
    await world.add_node("n1")
    pods = [await world.pod(name) for name in "abc"]
    for pod in pods:
        await replica.filter(pod, "n1")

    for pod in pods:
        assert await replica.bind(pod, "n1") == ""

    for pod in pods:
        await world.publish_report(events.Allocated, await world.until(pod, "bound"))
        await world.until(pod, "allocated")


async def test_a_node_lock_that_is_never_freed_fails_the_bind_in_time(world: World) -> None:
    patient = await world.replica()
    impatient = await world.replica(bind_timeout_s=5.3)
    [card] = await world.add_node("n1")
    first, second = await world.pod("a"), await world.pod("b")
    for pod in (first, second):
        await patient.filter(pod, "n1")
    assert await patient.bind(first, "n1") == ""

    error = await impatient.bind(second, "n1")

    assert "node lock contention" in error
    await world.until(second, "failed")
    assert (await world.used(card))[0] == 1
