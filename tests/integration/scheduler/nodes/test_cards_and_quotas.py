"""What keeps pods off: quotas of their namespace, cordoned cards, cards that vanished."""

from __future__ import annotations

import pytest
from hami_scheduler.adapters.postgres.decisions import PostgresDecisionLog
from hami_scheduler.placement.demand import ArrivalCounts
from hamicommon.placement.cluster.arrivals import shape_of
from hamicommon.placement.cluster.view import ClusterView

from tests.integration.scheduler.world import Replica, World, inventory_device
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_a_quota_refuses_and_names_what_is_left(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1", cards=1)
    first, pod = await world.pod("before"), await world.pod("beyond")
    await replica.filter(first, "n1")
    await world.api.create(
        "/api/v1/namespaces/default/resourcequotas",
        {
            "metadata": {"name": "gpus"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": "1500"}},
        },
    )

    async def counted() -> bool:
        row = await world.database.fetchrow("SELECT limit_amount, used_amount FROM quotas")
        return row is not None and tuple(row) == (1500, 1024)

    try:
        await eventually(counted, "the quota and what was used before it")
        answer = await replica.filter(pod, "n1")
        assert answer["FailedAndUnresolvableNodes"] == {"n1": "1/1 ResourceQuotaNotFit"}
        assert await world.used(card) == (1, 1024, 0)
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

    async def limited() -> bool:
        rows = await world.database.fetch("SELECT limit_amount FROM quotas")
        return [row["limit_amount"] for row in rows] == [600]

    try:
        await eventually(limited, "the stricter of the two quotas to hold")
        answer = await replica.filter(pods[0], "large", "small")
        assert answer["NodeNames"] == ["small"]
        assert (await world.used(small), await world.used(large)) == ((1, 500, 0), (0, 0, 0))

        answer = await replica.filter(pods[1], "large", "small")
        assert answer["FailedAndUnresolvableNodes"] == {
            "large": "1/1 ResourceQuotaNotFit",
            "small": "1/1 ResourceQuotaNotFit",
        }
    finally:
        for name in ("a", "b"):
            await world.api.delete(f"{path}/{name}")


async def test_a_cordoned_card_gets_nothing_new(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    await world.api.patch(
        "/api/v1/nodes/n1", {"metadata": {"annotations": {"hami.io/device-cordon": card}}}
    )

    async def cordoned() -> bool:
        devices = (await replica.get("/v1/devices"))["items"]
        return bool(devices[0]["cordoned"])

    await eventually(cordoned, "the card to be cordoned")
    pod = await world.pod("slice")

    answer = await replica.filter(pod, "n1")

    assert answer["FailedAndUnresolvableNodes"] == {"n1": "1/1 CardCordoned"}


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
    replica = await world.replica()
    [card] = await world.add_node("n1")
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
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    await world.until(pod, "reserved")

    await world.report("n1")

    async def sick() -> bool:
        [device] = (await replica.get("/v1/devices"))["items"]
        return not device["present"] and not device["healthy"]

    await eventually(sick, "the card to be marked")
    assert await world.used(card) == (1, 1024, 0)
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
    assert await world.used(half) == (2, 8000, 0)

    async def decided() -> bool:
        return len(await PostgresDecisionLog(world.database).arrivals(10)) == 2

    await eventually(decided, "both decisions to be written")
    latest = await PostgresDecisionLog(world.database).arrivals(1)
    assert latest[0].name.startswith("second")
    assert latest[0].containers[0].requests[0].memory_mib == 4000

    # What a replica that starts then, or again, makes of it.
    after = ClusterView()
    await ArrivalCounts(after, PostgresDecisionLog(world.database)).restore()
    assert shape_of(latest[0]) in after.usual.mix.shapes
