"""Missing and wrong reports are found by comparing."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from hamicommon import events

from tests.integration.scheduler.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_a_broken_inventory_hurts_nobody(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    from pydantic import BaseModel

    class Nonsense(BaseModel):
        node: str = "n1"
        version: int = 7

    await world.bus.publish(events.inventory_subject("n1"), Nonsense(), message_id="nonsense")
    await world.add_node("n2")
    pod = await world.pod("slice")

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    letter = (await replica.get("/v1/dead-letters?limit=1"))["items"][0]
    assert letter["subject"] == events.inventory_subject("n1")
    assert "version is 7, and this release reads 1" in letter["reason"]
    assert "hami_scheduler_dead_letters_kept" in (await replica.http.get("/metrics")).text
    path = f"/v1/dead-letters/{letter['sequence']}/send"
    assert (await replica.http.post(path)).status_code == 200
    assert (await replica.http.post(path)).status_code == 404


async def test_a_card_that_two_nodes_claim_stays_where_it_was(world: World) -> None:
    from tests.integration.scheduler.world import inventory_device

    replica = await world.replica()
    [card] = await world.add_node("n1")

    await world.report("n2", inventory_device(card, 0))
    await world.add_node("n3")

    [device] = [d for d in (await replica.get("/v1/devices"))["items"] if d["uuid"] == card]
    assert device["node"] == "n1"


async def test_rows_of_pods_that_vanished_unseen_are_found_by_the_reconciler(
    world: World,
) -> None:
    pod = await world.pod("slice")
    async with AsyncExitStack() as own:
        first = await replace(world, stack=own).replica()
        [card] = await world.add_node("n1")
        await first.filter(pod, "n1")
        assert await first.bind(pod, "n1") == ""
        await world.until(pod, "bound")
    await world.delete(pod)
    second = await world.replica()

    assert (await world.until(pod, "releasing"))["reason"] == "pod deleted"

    async def noted() -> list[Any]:
        return (await second.get("/v1/drift?class=bound-pod-gone&limit=1"))["items"]

    [line] = await eventually(noted, "the difference to be noted")
    assert "bound -> releasing on n1: pod deleted" in line["detail"]
    assert (await world.used(card))[0] == 1  # until its node reports that it left


async def test_a_pod_bound_past_us_gets_an_event(world: World) -> None:
    await world.replica()
    await world.add_node("n1")
    pod = await world.pod("static")
    await world.api.create(
        f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/binding",
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"]},
            "target": {"kind": "Node", "name": "n1"},
        },
    )

    async def written() -> bool:
        items = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
        return any(
            e["reason"] == "UnmanagedPod" and e["involvedObject"]["uid"] == pod["metadata"]["uid"]
            for e in items
        )

    await eventually(written, "the event on the pod")
