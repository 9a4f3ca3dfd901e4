"""A pod's way through /filter and /bind: once, repeated, and with the node's lock held."""

import asyncio
from datetime import UTC, datetime

from hami_scheduler.ledger.state_machine import FOUND_BOUND
from hamicommon import events
from hamicommon.domain.allocations import AllocationState
from hamicommon.grants.grant import load_public_key, verify
from hamicommon.k8s.annotations import BIND_PHASE, GRANT, NVIDIA_TO_ALLOCATE

from tests.integration.scheduler.world import World, inventory_device
from tests.waiting import eventually


async def test_a_pod_is_placed_bound_allocated_and_released(world: World) -> None:
    replica, card = await world.replica_with_card()
    pod = await world.pod("slice", memory_mib=4096, cores=30)

    answer = await replica.filter(pod, "n1", "cpu-only")
    assert answer == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }
    assert await world.used_amounts(card) == (0, 0, 0)

    assert await replica.bind(pod, "n1") == ""
    assert await world.used_amounts(card) == (1, 4096, 30)
    bound = await world.read(pod)
    annotations = bound["metadata"]["annotations"]
    assert bound["spec"]["nodeName"] == "n1"
    assert world.offered[pod["metadata"]["uid"]].allocation_id == (await world.rows(pod))[0]["id"]
    assert annotations[NVIDIA_TO_ALLOCATE] == f"{card},NVIDIA,4096,30:;"
    assert annotations[BIND_PHASE] == "allocating"
    grant = await world.until(pod, "bound")

    await world.publish_report(events.Allocated, grant)
    await world.until(pod, "allocated")

    await world.set_status(pod, phase="Succeeded")
    await world.until(pod, "released")
    assert await world.used_amounts(card) == (0, 0, 0)

    uid = pod["metadata"]["uid"]
    history = (await replica.get(f"/v1/pods/{uid}/history"))["items"]
    assert [(e["sequence"], e["state"]) for e in history] == [
        (1, "binding"),
        (2, "bound"),
        (3, "allocated"),
        (4, "released"),
    ]


async def test_the_signed_grant_is_what_the_ledger_has(world: World) -> None:
    replica, card = await world.replica_with_card()
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
    replica, _ = await world.replica_with_card()
    pod = await world.bound_pod(replica)
    await world.until(pod, "bound")

    question = events.GrantSnapshotRequest(node="n1")
    reply = await world.ask("n1", events.snapshot_subject("n1"), question)

    snapshot = events.GrantSnapshot.model_validate_json(reply)
    assert snapshot.complete
    [item] = snapshot.grants
    assert (item.grant.pod_uid, item.state) == (pod["metadata"]["uid"], AllocationState.BOUND)


async def test_a_pod_that_fits_nowhere_is_refused_with_every_reason(world: World) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.pod("huge", memory_mib=999 * 1024)

    answer = await replica.filter(pod, "n1", "cpu-only")

    reasons = {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
    assert reasons == {"n1": "1/1 CardInsufficientMemory", "cpu-only": "node unregistered"}
    assert answer["NodeNames"] is None
    assert answer["Error"] == ""
    uid = pod["metadata"]["uid"]

    async def is_explained() -> bool:
        answer = await replica.http.get(f"/v1/pods/{uid}/explain")
        return answer.status_code == 200

    await eventually(is_explained, "the decision to be written")
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


async def test_what_a_bound_pod_without_its_cards_waits_for_is_reported(world: World) -> None:
    replica, _ = await world.replica_with_card(bound_late_s=0.2)
    pod = await world.bound_pod(replica)
    await world.until(pod, "bound")
    late = "bound and without its cards: the kubelet of n1 has not picked up the pod"

    async def is_shown() -> bool:
        [row] = (await replica.get(f"/v1/allocations?pod_uid={pod['metadata']['uid']}"))["items"]
        # The comparison with the API server may be the one that finds it bound.
        assert row["state"] == "bound"
        assert row["reason"] in {"", FOUND_BOUND, late}
        return bool(row["reason"] == late)

    await eventually(is_shown, "the reason beside the allocation")

    async def is_written() -> bool:
        items = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
        mine = [e for e in items if e["involvedObject"]["uid"] == pod["metadata"]["uid"]]
        return ("AllocateLate", late) in [(e["reason"], e["message"]) for e in mine]

    await eventually(is_written, "the event on the pod")
    assert "hami_scheduler_bound_late 1.0" in (await replica.http.get("/metrics")).text
    await world.publish_report(events.Allocated, await world.until(pod, "bound"))
    assert (await world.until(pod, "allocated"))["reason"] == ""


async def test_a_node_whose_agent_can_take_no_pod_is_left_out_until_it_is_heard(
    world: World,
) -> None:
    replica, card = await world.replica_with_card()
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

    async def is_offered() -> bool:
        return (await replica.filter(late, "n1"))["NodeNames"] == ["n1"]

    await eventually(is_offered, "the node to be offered again")


async def test_a_repeated_filter_counts_the_pod_once(world: World) -> None:
    replica = await world.replica()
    [card1] = await world.add_node("n1")
    [card2] = await world.add_node("n2")
    pod = await world.pod("slice", memory_mib=4096)
    await replica.filter(pod, "n1")

    again = await replica.filter(pod, "n2")

    assert again["NodeNames"] == ["n2"]
    assert await world.rows(pod) == []
    assert await replica.bind(pod, "n2") == ""
    assert await world.used_amounts(card1) == (0, 0, 0)
    assert await world.used_amounts(card2) == (1, 4096, 0)


async def test_a_pod_whose_binding_is_under_way_keeps_its_node(world: World) -> None:
    replica, _ = await world.replica_with_card()
    await world.add_node("n2")
    pod = await world.pod("slice")
    [first] = (await replica.filter(pod, "n1", "n2"))["NodeNames"]
    state = replica.service.adopter.view
    state.note_binding(pod["metadata"]["uid"], first)

    again = await replica.filter(pod, "n1", "n2")
    elsewhere = await replica.filter(pod, *({"n1", "n2"} - {first}))

    assert again["NodeNames"] == [first]
    assert f"being bound to node {first}" in elsewhere["Error"]


async def test_bind_without_a_filter_places_on_that_node(world: World) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.pod("slice")

    assert await replica.bind(pod, "n1") == ""

    assert (await world.until(pod, "bound"))["node"] == "n1"
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"


async def test_bind_to_a_node_without_room_fails_with_the_reason(world: World) -> None:
    replica, card = await world.replica_with_card()
    pod = await world.pod("huge", memory_mib=999 * 1024)

    error = await replica.bind(pod, "n1")

    assert "1/1 CardInsufficientMemory" in error
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_bind_again_is_a_success(world: World) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.reserved_pod(replica)

    assert await replica.bind(pod, "n1") == ""
    assert await replica.bind(pod, "n1") == ""
    assert await replica.filter(pod, "n1") | {"NodeNames": ["n1"]} == await replica.filter(
        pod, "n1"
    )


async def test_bind_of_a_pod_that_is_gone_gives_everything_back(world: World) -> None:
    replica, card = await world.replica_with_card()
    pod = await world.reserved_pod(replica)
    await world.delete(pod)

    assert await replica.bind(pod, "n1") != ""

    async def is_ended() -> bool:
        # No grant at all if the watch saw the pod go before /bind came.
        return all(row["state"] in ("failed", "released") for row in await world.rows(pod))

    await eventually(is_ended, "every grant of the pod to be ended")
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_the_node_lock_is_handed_on_when_the_node_reports(world: World) -> None:
    replica, _ = await world.replica_with_card()
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
    replica, _ = await world.replica_with_card()
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
    assert (await world.used_amounts(card))[0] == 1
