"""A pod learns what became of the cards that it holds: in explain, and by one event."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.domain.granted_cards import IN_MIG_MODE
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import Replica, World, inventory_device
from tests.waiting import eventually

pytestmark = pytest.mark.integration

REASON = "GrantedCardChanged"


async def holder_of(world: World, replica: Replica, node: str, card: str) -> Json:
    pod = await world.pod("holds", annotations={"nvidia.com/use-gpuuuid": card})
    await replica.filter(pod, node)
    assert await replica.bind(pod, node) == ""
    await world.until(pod, "bound")
    return pod


async def events_with(world: World, pod: Json, wanted: str) -> list[Json]:
    """The pod's events of this kind, once one of them has the text."""

    async def has() -> list[Json] | None:
        items = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
        mine = [
            event
            for event in items
            if event["involvedObject"]["uid"] == pod["metadata"]["uid"]
            and event["reason"] == REASON
        ]
        return mine if any(wanted in event["message"] for event in mine) else None

    return await eventually(has, f"an event with {wanted!r}")


async def conditions(replica: Replica, pod: Json) -> list[str]:
    path = f"/v1/pods/{pod['metadata']['uid']}/explain"
    return [card["condition"] for card in (await replica.get(path))["cards"]]


@pytest.mark.parametrize(
    ("condition", "reported", "text", "kind"),
    [
        ("lost", [], "is lost: the node no longer reports it. Delete the pod", "Warning"),
        # The next card has got its index.
        (
            "lost",
            [("GPU-{node}-1", {})],
            "is lost: the node no longer reports it. Delete the pod",
            "Warning",
        ),
        (
            "replaced",
            [("GPU-new", {})],
            "was replaced: the node has GPU-new in its place. Delete the pod",
            "Warning",
        ),
        (
            "unhealthy",
            [("GPU-{node}-0", {"healthy": False, "health_reason": "XID 79"})],
            "is unhealthy: XID 79. CUDA calls may fail",
            "Warning",
        ),
        (
            "mode-changed",
            [("GPU-{node}-0", {"healthy": False, "health_reason": IN_MIG_MODE})],
            "was switched to MIG mode, and the pod was granted a slice of it. Delete the pod",
            "Warning",
        ),
        (
            "mode-changed",
            [("GPU-{node}-0", {"mode": "mig", "slots": 7})],
            "was switched to MIG mode, and the pod was granted a slice of it. Delete the pod",
            "Warning",
        ),
        ("cordoned", None, "is cordoned: nothing new is placed on it", "Normal"),
    ],
    ids=["lost", "moved-up", "replaced", "sick", "mig", "mig-node", "cordoned"],
)
async def test_a_pod_is_shown_what_became_of_its_card(
    world: World,
    request: pytest.FixtureRequest,
    condition: str,
    reported: list[tuple[str, Any]] | None,
    text: str,
    kind: str,
) -> None:
    replica = await world.replica(reconcile_s=0.1)
    node = request.node.callspec.id
    [card, _] = await world.add_node(node, cards=2)
    pod = await holder_of(world, replica, node, card)
    assert await conditions(replica, pod) == []

    if reported is None:
        note = {"metadata": {"annotations": {"hami.io/device-cordon": card}}}
        await world.api.patch(f"/api/v1/nodes/{node}", note)
    else:
        devices = [
            inventory_device(uuid.format(node=node), 0, **changes) for uuid, changes in reported
        ]
        await world.report(node, *devices)

    [event] = await events_with(world, pod, text)
    assert (event["type"], event["count"]) == (kind, 1)
    assert await conditions(replica, pod) == [condition]


async def test_neither_a_look_again_nor_another_scheduler_repeats_it(world: World) -> None:
    replica = await world.replica(reconcile_s=0.1)
    [card] = await world.add_node("n1")
    pod = await holder_of(world, replica, "n1", card)
    await world.report("n1")
    await events_with(world, pod, "is lost")

    other = await world.replica(reconcile_s=0.1)

    assert await conditions(other, pod) == ["lost"]
    second = await holder_of_another_lost_card(world, replica)
    await events_with(world, second, "is lost")
    assert [one["count"] for one in await events_with(world, pod, "is lost")] == [1]


async def holder_of_another_lost_card(world: World, replica: Replica) -> Json:
    """A pod that is shown later, so that what came before has been looked at again."""
    [card] = await world.add_node("later")
    pod = await holder_of(world, replica, "later", card)
    await world.report("later")
    return pod


async def test_a_pod_on_a_node_that_is_silent_is_shown_and_its_limits_are_unknown(
    world: World,
) -> None:
    replica = await world.replica(reconcile_s=0.1, agent_silent_s=1.0)
    [card] = await world.add_node("mute")
    pod = await holder_of(world, replica, "mute", card)
    # Heard twice, so that its silence means something.
    await world.report("mute", inventory_device(card, 0, numa=1))
    await world.database.fetch(
        "INSERT INTO limit_checks (node, agent_id, sequence, checked_at, containers)"
        " VALUES ('mute', 'a', 1, now(), 1)"
    )

    await events_with(world, pod, "the node-agent of mute has not been heard since")

    path = f"/v1/pods/{pod['metadata']['uid']}/explain"
    [attempt] = (await replica.get(path))["attempts"]
    assert attempt["limit_state"] == "unknown"
    assert await conditions(replica, pod) == ["node-silent"]
