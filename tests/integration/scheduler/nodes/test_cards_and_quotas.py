"""Reasons that keep pods off (quotas, cordons, lost cards), and granted cards that change."""

from typing import Any

import pytest
from hami_scheduler.adapters.postgres.decisions import PostgresDecisionLog
from hami_scheduler.placement.waiting_pods import ArrivalCounts
from hamicommon.domain.granted_cards import IN_MIG_MODE
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.arrivals import shape_of
from hamicommon.placement.cluster.view import ClusterView

from tests.integration.scheduler.world import Replica, World, inventory_device
from tests.waiting import eventually


async def test_a_quota_refuses_and_names_what_is_left(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1", cards=1)
    first, pod = await world.pod("before"), await world.pod("beyond")
    await replica.filter(first, "n1")
    assert await replica.bind(first, "n1") == ""
    await world.api.create(
        "/api/v1/namespaces/default/resourcequotas",
        {
            "metadata": {"name": "gpus"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": "1500"}},
        },
    )

    async def is_entered() -> bool:
        row = await world.database.fetchrow("SELECT limit_amount, used_amount FROM quotas")
        return row is not None and tuple(row) == (1500, 1024)

    try:
        await eventually(is_entered, "the quota and what was used before it")

        async def is_refused() -> bool:
            answer = await replica.filter(pod, "n1")
            return answer["FailedAndUnresolvableNodes"] == {"n1": "1/1 ResourceQuotaNotFit"}

        await eventually(is_refused, "the quota to be known")
        assert await world.used_amounts(card) == (1, 1024, 0)
    finally:
        await world.api.delete("/api/v1/namespaces/default/resourcequotas/gpus")

    async def fits() -> bool:
        return bool((await replica.filter(pod, "n1"))["NodeNames"])

    await eventually(fits, "the pod to fit without the quota")


async def test_a_percentage_goes_to_the_card_that_the_quota_allows(world: World) -> None:
    replica = await world.replica(node_scheduler_policy="spread")
    [large] = await world.add_node("large", memory_mib=8000)
    [small] = await world.add_node("small", memory_mib=1000)
    pods = [
        await world.pod(name, limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"})
        for name in ("half", "more")
    ]
    path = "/api/v1/namespaces/default/resourcequotas"
    await world.api.create(
        path,
        {"metadata": {"name": "a"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "600"}}},
    )
    await world.api.create(
        path,
        {"metadata": {"name": "b"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "90000"}}},
    )

    async def is_limited() -> bool:
        rows = await world.database.fetch("SELECT limit_amount FROM quotas")
        return [row["limit_amount"] for row in rows] == [600]

    try:
        await eventually(is_limited, "the stricter of the two quotas to hold")

        async def on_the_small_one() -> bool:
            answer = await replica.filter(pods[0], "large", "small")
            return answer["NodeNames"] == ["small"]

        await eventually(on_the_small_one, "the quota to be known")
        assert await replica.bind(pods[0], "small") == ""
        assert (await world.used_amounts(small), await world.used_amounts(large)) == (
            (1, 500, 0),
            (0, 0, 0),
        )

        answer = await replica.filter(pods[1], "large", "small")
        assert answer["FailedAndUnresolvableNodes"] == {
            "large": "1/1 ResourceQuotaNotFit",
            "small": "1/1 ResourceQuotaNotFit",
        }
    finally:
        for name in ("a", "b"):
            await world.api.delete(f"{path}/{name}")


async def test_a_cordoned_card_gets_nothing_new(world: World) -> None:
    replica, card = await world.replica_with_card()
    await world.api.patch(
        "/api/v1/nodes/n1", {"metadata": {"annotations": {"hami.io/device-cordon": card}}}
    )

    async def is_cordoned() -> bool:
        devices = (await replica.get("/v1/devices"))["items"]
        return bool(devices[0]["cordoned"])

    await eventually(is_cordoned, "the card to be cordoned")
    pod = await world.pod("slice")

    answer = await replica.filter(pod, "n1")

    assert answer["FailedAndUnresolvableNodes"] == {"n1": "1/1 CardCordoned"}


async def test_a_cordon_takes_the_index_and_a_short_uuid_and_names_what_is_no_card(
    world: World,
) -> None:
    replica = await world.replica()
    cards = await world.add_node("n1", cards=3)
    entries = f"0, {cards[1]}, GPU-nobody"
    change = {"metadata": {"annotations": {"hami.io/device-cordon": entries}}}
    await world.api.patch("/api/v1/nodes/n1", change)

    async def are_cordoned() -> bool:
        return await cordons(replica) == {cards[0]: True, cards[1]: True, cards[2]: False}

    await eventually(are_cordoned, "two cards to be cordoned")

    async def is_named() -> bool:
        rows = (await replica.get("/v1/vain-settings"))["items"]
        return [(row["kind"], row["name"]) for row in rows] == [("Node", "n1")]

    await eventually(is_named, "the entry to be named")
    [row] = (await replica.get("/v1/vain-settings"))["items"]
    assert row["setting"] == "hami.io/device-cordon"
    assert "'GPU-nobody' is not a card of this node" in row["problem"]
    [drift] = (await replica.get("/v1/drift?class=cordon-without-card"))["items"]
    assert (drift["subject"], drift["repaired"]) == ("n1", False)

    async def is_shown_on_the_node() -> bool:
        events = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
        return [
            (each["involvedObject"]["kind"], each["involvedObject"]["name"], each["type"])
            for each in events
            if each["reason"] == "CordonWithoutCard"
        ] == [("Node", "n1", "Warning")]

    await eventually(is_shown_on_the_node, "the event on the node")
    await world.api.patch(
        "/api/v1/nodes/n1", {"metadata": {"annotations": {"hami.io/device-cordon": None}}}
    )

    async def nothing_is_left() -> bool:
        rows = (await replica.get("/v1/vain-settings"))["items"]
        return not rows and not any((await cordons(replica)).values())

    await eventually(nothing_is_left, "the cards to be open again")


async def test_a_quota_that_limits_nothing_is_named(world: World) -> None:
    replica = await world.replica()
    path = "/api/v1/namespaces/default/resourcequotas"
    hard = {"nvidia.com/gpumem": "4000", "limits.nvidia.com/gpucores": "100"}
    await world.api.create(path, {"metadata": {"name": "q"}, "spec": {"hard": hard}})

    async def problems() -> list[str]:
        return [row["problem"] for row in (await replica.get("/v1/vain-settings"))["items"]]

    async def is_named() -> bool:
        return bool(await problems())

    try:
        await eventually(is_named, "the quota to be named")
        assert await problems() == [
            "nvidia.com/gpumem: 4k limits nothing: write limits.nvidia.com/gpumem: 4000"
        ]
    finally:
        await world.api.delete(f"{path}/q")

    async def is_forgotten() -> bool:
        return not await problems()

    await eventually(is_forgotten, "the deleted quota to be forgotten")


async def cordons(replica: Replica) -> dict[str, bool]:
    return {row["uuid"]: row["cordoned"] for row in (await replica.get("/v1/devices"))["items"]}


async def test_a_cordon_from_before_the_first_report_of_an_agent_holds(world: World) -> None:
    replica = await world.replica()
    [known] = await world.add_node("known")
    cordon = {"annotations": {"hami.io/device-cordon": "GPU-early-0"}}
    await world.api.create("/api/v1/nodes", {"metadata": {"name": "early", **cordon}})
    # One worker carries cordons out in order: when this one is in the ledger, that one was tried.
    await world.api.patch(
        "/api/v1/nodes/known", {"metadata": {"annotations": {"hami.io/device-cordon": known}}}
    )

    async def first_is_carried_out() -> bool:
        return (await cordons(replica))[known]

    await eventually(first_is_carried_out, "the known card to be cordoned")
    await world.report(
        "early", inventory_device("GPU-early-0", 0), inventory_device("GPU-early-1", 1)
    )

    async def early_is_cordoned() -> bool:
        found = await cordons(replica)
        return found.get("GPU-early-0", False) and not found["GPU-early-1"]

    await eventually(early_is_cordoned, "the card of the new node to be cordoned")


async def test_a_card_that_moves_leaves_the_cordon_of_its_old_node_behind(world: World) -> None:
    replica, card = await world.replica_with_card()
    await world.add_node("n2", cards=0)
    await world.api.patch(
        "/api/v1/nodes/n1", {"metadata": {"annotations": {"hami.io/device-cordon": card}}}
    )

    async def is_cordoned() -> bool:
        return (await cordons(replica))[card]

    await eventually(is_cordoned, "the card to be cordoned")
    await world.report("n1")

    async def is_gone() -> bool:
        [row] = [row for row in (await replica.get("/v1/devices"))["items"] if row["uuid"] == card]
        return not row["healthy"]

    # Nodes' reports are taken side by side: a card that its old node still has is refused.
    await eventually(is_gone, "the card to be gone from its old node")
    await world.report("n2", inventory_device(card, 0))

    async def is_free_on_the_other_node() -> bool:
        rows = (await replica.get("/v1/devices"))["items"]
        return [(row["node"], row["cordoned"]) for row in rows if row["uuid"] == card] == [
            ("n2", False)
        ]

    await eventually(is_free_on_the_other_node, "the card to be there without a cordon")


async def test_a_card_that_vanishes_is_sick_and_not_forgotten(world: World) -> None:
    replica, card = await world.replica_with_card()
    await world.bound_pod(replica)

    await world.report("n1")

    async def sick() -> bool:
        [device] = (await replica.get("/v1/devices"))["items"]
        return not device["present"] and not device["healthy"]

    await eventually(sick, "the card to be marked")
    assert await world.used_amounts(card) == (1, 1024, 0)
    rows = await world.database.fetch(
        "SELECT healthy FROM device_health_events WHERE device_uuid = $1 ORDER BY id", card
    )
    assert [row["healthy"] for row in rows] == [True, False]


async def test_fragmentation_completes_a_card_and_learns_from_the_ledger(world: World) -> None:
    replica = await world.replica(node_scheduler_policy="fragmentation")
    await world.add_node("a", memory_mib=8000)
    [half] = await world.add_node("b", memory_mib=8000)
    pods = [
        await world.pod(name, limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"})
        for name in ("first", "second")
    ]

    assert (await replica.filter(pods[0], "b"))["NodeNames"] == ["b"]
    assert (await replica.filter(pods[1], "a", "b"))["NodeNames"] == ["b"]
    world.late.add("b")
    for pod in pods:
        assert await replica.bind(pod, "b") == ""
    assert await world.used_amounts(half) == (2, 8000, 0)

    async def is_decided() -> bool:
        return len(await PostgresDecisionLog(world.database).arrivals(10)) == 2

    await eventually(is_decided, "both decisions to be written")
    latest = await PostgresDecisionLog(world.database).arrivals(1)
    assert latest[0].name.startswith("second")
    assert latest[0].containers[0].requests[0].memory_mib == 4000

    # What a replica that starts then, or again, makes of it.
    after = ClusterView()
    await ArrivalCounts(after, PostgresDecisionLog(world.database)).restore()
    assert shape_of(latest[0]) in after.usual.mix.shapes


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
        ("cordoned", None, "is cordoned: no new pods are placed on it", "Normal"),
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
    replica, card = await world.replica_with_card(reconcile_s=0.1)
    pod = await holder_of(world, replica, "n1", card)
    await world.report("n1")
    await events_with(world, pod, "is lost")

    other = await world.replica(reconcile_s=0.1)

    assert await conditions(other, pod) == ["lost"]
    second = await holder_of_another_lost_card(world, replica)
    await events_with(world, second, "is lost")
    assert [one["count"] for one in await events_with(world, pod, "is lost")] == [1]


async def holder_of_another_lost_card(world: World, replica: Replica) -> Json:
    """A pod that is shown later, when all earlier ones have been checked again."""
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

    await events_with(world, pod, "the node-agent of mute has not reported since")

    path = f"/v1/pods/{pod['metadata']['uid']}/explain"
    [attempt] = (await replica.get(path))["attempts"]
    assert attempt["limit_state"] == "unknown"
    assert await conditions(replica, pod) == ["node-silent"]
