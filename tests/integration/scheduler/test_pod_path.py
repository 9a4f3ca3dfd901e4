"""A pod's way through /filter and /bind, and what the node and the API server say afterwards."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hamicommon import events
from hamicommon.domain.allocations import AllocationState
from hamicommon.grants import load_public_key, verify
from hamicommon.k8s.annotations import (
    BIND_PHASE,
    GRANT,
    NVIDIA_ALLOCATED,
    NVIDIA_TO_ALLOCATE,
)

from tests.integration.scheduler.conftest import World, eventually, inventory_device

pytestmark = pytest.mark.integration


async def test_a_pod_is_reserved_bound_allocated_and_released(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice", memory_mib=4096, cores=30)

    answer = await replica.filter(pod, "n1", "cpu-only")
    assert answer == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }
    assert await world.used(card) == (1, 4096, 30)

    assert await replica.bind(pod, "n1") == ""
    bound = await world.read(pod)
    annotations = bound["metadata"]["annotations"]
    assert bound["spec"]["nodeName"] == "n1"
    await world.until_labelled(pod, "n1")
    assert annotations[NVIDIA_TO_ALLOCATE] == f"{card},NVIDIA,4096,30:;"
    assert annotations[BIND_PHASE] == "allocating"
    grant = await world.until(pod, "bound")

    await world.say(events.Allocated, grant)
    await world.until(pod, "allocated")

    await world.set_status(pod, phase="Succeeded")
    await world.until(pod, "released")
    assert await world.used(card) == (0, 0, 0)

    uid = pod["metadata"]["uid"]
    history = (await replica.get(f"/v1/pods/{uid}/history"))["items"]
    assert [(e["sequence"], e["state"]) for e in history] == [
        (1, "reserved"),
        (2, "binding"),
        (3, "bound"),
        (4, "allocated"),
        (5, "released"),
    ]


async def test_the_signed_grant_is_what_the_ledger_has(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice", memory_mib=4096)
    await replica.filter(pod, "n1")
    await replica.bind(pod, "n1")

    text = (await world.read(pod))["metadata"]["annotations"][GRANT]
    public = load_public_key(world.settings.grant_key_file.with_name("grant.pub"))
    grant = verify(text, public, now=datetime.now(UTC))

    [row] = await world.rows(pod)
    assert (grant.allocation_id, grant.token, grant.node) == (row["id"], row["token"], "n1")
    assert [share.uuid for share in grant.containers[0].shares] == [card]


async def test_the_grant_is_announced_and_in_the_snapshot(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    await replica.bind(pod, "n1")

    reply = await world.bus.request(
        events.snapshot_subject("n1"), events.GrantSnapshotRequest(node="n1")
    )

    snapshot = events.GrantSnapshot.model_validate_json(reply)
    assert snapshot.complete
    [item] = snapshot.grants
    assert (item.grant.pod_uid, item.state) == (pod["metadata"]["uid"], AllocationState.BOUND)


async def test_a_pod_that_fits_nowhere_is_refused_with_every_reason(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("huge", memory_mib=999 * 1024)

    answer = await replica.filter(pod, "n1", "cpu-only")

    reasons = {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
    assert reasons == {"n1": "1/1 CardInsufficientMemory", "cpu-only": "node unregistered"}
    assert answer["NodeNames"] is None
    assert answer["Error"] == ""
    uid = pod["metadata"]["uid"]

    async def explained() -> bool:
        answer = await replica.http.get(f"/v1/pods/{uid}/explain")
        return answer.status_code == 200

    await eventually(explained, "the decision to be written")
    explained_ = await replica.get(f"/v1/pods/{uid}/explain")
    assert explained_["outcome"] == "refused"
    [node] = explained_["nodes"]
    assert (node["node"], node["reason"]) == ("n1", reasons["n1"])
    assert [card["requested"] for card in node["cards"]] == [999 * 1024]
    assert explained_["nodes_without_cards"] == 1


async def test_a_pod_without_cards_passes_unchanged(world: World) -> None:
    replica = await world.replica()

    answer = await replica.filter(
        {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}, "b", "a"
    )

    assert answer["NodeNames"] == ["b", "a"]


async def test_a_repeated_filter_keeps_the_reservation_if_its_node_is_offered(
    world: World,
) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.pod("slice")
    [first] = (await replica.filter(pod, "n1", "n2"))["NodeNames"]

    again = await replica.filter(pod, "n1", "n2")

    assert again["NodeNames"] == [first]
    assert [row["attempt"] for row in await world.rows(pod)] == [1]


async def test_a_repeated_filter_elsewhere_replaces_the_reservation(world: World) -> None:
    replica = await world.replica()
    [card1] = await world.add_node("n1")
    [card2] = await world.add_node("n2")
    pod = await world.pod("slice", memory_mib=4096)
    await replica.filter(pod, "n1")

    again = await replica.filter(pod, "n2")

    assert again["NodeNames"] == ["n2"]
    assert [row["state"] for row in await world.rows(pod)] == ["released", "reserved"]
    assert await world.used(card1) == (0, 0, 0)
    assert await world.used(card2) == (1, 4096, 0)


async def test_bind_without_a_reservation_places_on_that_node(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")

    assert await replica.bind(pod, "n1") == ""

    assert (await world.until(pod, "bound"))["node"] == "n1"
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"


async def test_bind_to_a_node_without_room_fails_with_the_reason(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("huge", memory_mib=999 * 1024)

    error = await replica.bind(pod, "n1")

    assert "1/1 CardInsufficientMemory" in error
    assert await world.used(card) == (0, 0, 0)


async def test_bind_again_is_a_success(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")

    assert await replica.bind(pod, "n1") == ""
    assert await replica.bind(pod, "n1") == ""
    assert await replica.filter(pod, "n1") | {"NodeNames": ["n1"]} == await replica.filter(
        pod, "n1"
    )


async def test_bind_of_a_pod_that_is_gone_gives_everything_back(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    await world.delete(pod)

    assert await replica.bind(pod, "n1") != ""

    await world.until(pod, "failed", "released")
    assert await world.used(card) == (0, 0, 0)


async def test_a_bound_pod_that_gets_no_cards_says_what_it_waits_for(world: World) -> None:
    replica = await world.replica(bound_late_s=0.2)
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    await replica.bind(pod, "n1")
    said = "bound and without its cards: the kubelet of n1 has not taken the pod up"

    async def shown() -> bool:
        [row] = (await replica.get(f"/v1/allocations?pod_uid={pod['metadata']['uid']}"))["items"]
        return bool(row["reason"] == said and row["state"] == "bound")

    await eventually(shown, "the reason beside the allocation")

    async def told() -> bool:
        items = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
        mine = [e for e in items if e["involvedObject"]["uid"] == pod["metadata"]["uid"]]
        return ("AllocateLate", said) in [(e["reason"], e["message"]) for e in mine]

    await eventually(told, "the event on the pod")
    assert "hami_scheduler_bound_late 1.0" in (await replica.http.get("/metrics")).text
    await world.say(events.Allocated, await world.until(pod, "bound"))
    assert (await world.until(pod, "allocated"))["reason"] == ""


async def test_a_node_whose_agent_can_take_no_pod_is_left_out_until_it_is_heard(
    world: World,
) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.pod("slice")
    world.unready.add("n1")
    assert (await replica.filter(pod, "n1", "n2"))["NodeNames"] == ["n1"]
    assert "the kubelet is away" in await replica.bind(pod, "n1")

    again = await replica.filter(pod, "n1", "n2")
    alone = await replica.filter(await world.pod("other"), "n1")

    assert again["NodeNames"] == ["n2"]
    assert alone["FailedAndUnresolvableNodes"] == {"n1": "node-agent silent"}

    world.unready.clear()
    await world.report("n1", inventory_device(card, 0))
    late = await world.pod("late")

    async def offered() -> bool:
        return (await replica.filter(late, "n1"))["NodeNames"] == ["n1"]

    await eventually(offered, "the node to be offered again")


async def test_the_node_lock_is_handed_on_when_the_node_reports(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    first, second = await world.pod("a"), await world.pod("b")
    for pod in (first, second):
        await replica.filter(pod, "n1")
    assert await replica.bind(first, "n1") == ""

    waiting = asyncio.create_task(replica.bind(second, "n1"))
    await world.until(second, "binding")
    await world.say(events.Allocated, await world.until(first, "bound"))

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
        await world.say(events.Allocated, await world.until(pod, "bound"))
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


async def test_a_moved_pod_is_written_down_where_it_runs(world: World) -> None:
    replica = await world.replica()
    cards = await world.add_node("n1", cards=2)
    pod = await world.pod("slice", memory_mib=4096)
    await replica.filter(pod, "n1")
    await replica.bind(pod, "n1")
    grant = await world.until(pod, "bound")
    granted = (await replica.get("/v1/allocations"))["items"][0]["devices"][0]["device_uuid"]
    other = next(card for card in cards if card != granted)

    wanted = events.WantedMove(
        allocation_id=grant["id"], token=grant["token"], container="main", uuids=(other,)
    )
    reply = await world.bus.request(
        events.moves_subject("n1"), events.MoveRequest(node="n1", owner=wanted), timeout_s=20
    )

    assert events.MoveReply.model_validate_json(reply).refused == ""
    assert await world.used(other) == (1, 4096, 0)
    assert await world.used(granted) == (0, 0, 0)

    async def mirrored() -> bool:
        annotations = (await world.read(pod))["metadata"]["annotations"]
        return bool(annotations[NVIDIA_ALLOCATED] == f"{other},NVIDIA,4096,0:;")

    await eventually(mirrored, "the annotation to follow")


@pytest.mark.parametrize("written", ["GPU-mine,NVIDIA,81920,100:;", None, "nonsense"])
async def test_an_annotation_that_somebody_changed_is_the_ledgers_again(
    world: World, written: str | None
) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    await replica.bind(pod, "n1")
    await world.say(events.Allocated, await world.until(pod, "bound"))
    await world.until(pod, "allocated")
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"

    await world.api.patch(path, {"metadata": {"annotations": {NVIDIA_ALLOCATED: written}}})

    async def mended() -> bool:
        annotations = (await world.read(pod))["metadata"]["annotations"]
        return bool(annotations.get(NVIDIA_ALLOCATED) == f"{card},NVIDIA,1024,0:;")

    await eventually(mended, "the annotation to be mended")
    assert await world.used(card) == (1, 1024, 0)

    async def journalled() -> bool:
        lines = (await replica.get("/v1/drift?class=annotations-differ"))["items"]
        return any(pod["metadata"]["uid"] in line["subject"] for line in lines)

    await eventually(journalled, "the line in the journal")


async def test_a_pod_whose_annotations_are_refused_holds_up_nothing(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    full, other = await world.pod("full"), await world.pod("other")
    for pod in (full, other):
        await replica.filter(pod, "n1")
        await replica.bind(pod, "n1")
        await world.say(events.Allocated, await world.until(pod, "bound"))
        await world.until(pod, "allocated")

    # No byte of an API server's 256 KiB is left for ours.
    kept = dict((await world.read(full))["metadata"]["annotations"])
    del kept[NVIDIA_ALLOCATED]
    taken = sum(len(key) + len(value) for key, value in kept.items()) + len("example.com/blob")
    blob = "x" * (256 * 1024 - taken)
    for pod, written in ((full, {"example.com/blob": blob}), (other, {})):
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        await world.api.patch(
            path, {"metadata": {"annotations": {NVIDIA_ALLOCATED: None, **written}}}
        )

    async def mended(pod: dict[str, Any]) -> bool:
        annotations = (await world.read(pod))["metadata"]["annotations"]
        return bool(annotations.get(NVIDIA_ALLOCATED) == f"{card},NVIDIA,1024,0:;")

    async def journalled() -> bool:
        lines = (await replica.get("/v1/drift?class=annotations-refused"))["items"]
        return any(
            full["metadata"]["uid"] in line["subject"] and "Too long" in line["detail"]
            for line in lines
        )

    await eventually(journalled, "the refusal in the journal")
    await eventually(lambda: mended(other), "the other pod to be mended")

    path = f"/api/v1/namespaces/default/pods/{full['metadata']['name']}"
    await world.api.patch(path, {"metadata": {"annotations": {"example.com/blob": None}}})

    await eventually(lambda: mended(full), "the pod to be mended once there is room")
