"""How a grant ends: by the pod, its node, its deadline, or because it was never used."""

import asyncio
import itertools

import pytest
from hami_scheduler.ledger.state_machine import STILL_SEEN
from hamicommon import events

from tests.integration.scheduler.world import World, inventory_device
from tests.waiting import eventually


async def test_a_deleted_pod_is_released_when_its_node_reports_it_gone(world: World) -> None:
    replica, card = await world.replica_with_card()
    pod = await world.bound_pod(replica)

    await world.delete(pod)
    releasing = await world.until(pod, "releasing")
    assert (await world.used_amounts(card))[0] == 1

    await world.publish_report(events.PodGone, releasing)
    await world.until(pod, "released")
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_a_deleted_pod_of_a_silent_node_is_released_unconfirmed(world: World) -> None:
    replica, card = await world.replica_with_card(release_unconfirmed_s=0.2)
    pod = await world.bound_pod(replica)

    await world.delete(pod)

    await world.until(pod, "released_unconfirmed")
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_a_process_that_outlives_its_deleted_pod_keeps_its_slices(world: World) -> None:
    replica, card = await world.replica_with_card(release_unconfirmed_s=0.5, agent_silent_s=0.4)
    pod = await world.bound_pod(replica)
    device = inventory_device(card, 0)
    talking = asyncio.create_task(_keep_talking(world, "n1", device))
    # The agent must have been heard, twice, before its silence means anything.
    rows = "SELECT agent_sequence FROM nodes WHERE name = 'n1'"
    first = (await world.database.fetchrow(rows))[0]

    async def has_reported() -> bool:
        return bool((await world.database.fetchrow(rows))[0] > first + 1)

    await eventually(has_reported, "the agent to be heard")
    await world.delete(pod)
    releasing = await world.until(pod, "releasing")

    async def is_prolonged() -> bool:
        return (await world.rows(pod))[-1]["reason"] == STILL_SEEN

    await eventually(is_prolonged, "the deadline to pass")
    # That nothing happens has no event to wait for.
    await asyncio.sleep(1.5)
    assert (await world.rows(pod))[-1]["state"] == "releasing"
    assert (await world.used_amounts(card))[0] == 1

    await world.publish_report(events.PodGone, releasing)
    await world.until(pod, "released")
    talking.cancel()
    assert await world.used_amounts(card) == (0, 0, 0)


async def _keep_talking(world: World, node: str, device: events.InventoryDevice) -> None:
    """Report a change with every message, so that each is stored immediately."""
    for number in itertools.count():
        changed = device.model_copy(update={"memory_mib": device.memory_mib + number % 2})
        await world.report(node, changed)
        await asyncio.sleep(0.1)


async def test_a_placement_that_is_never_bound_is_free_again(world: World) -> None:
    replica = await world.replica(reservation_s=0.2, reconcile_s=0.1)
    await world.add_node("n1", slots=1)
    await replica.filter(await world.pod("never-bound"), "n1")
    waiter = await world.pod("waiter")

    async def is_offered() -> bool:
        return (await replica.filter(waiter, "n1"))["NodeNames"] == ["n1"]

    await eventually(is_offered, "the slot to be free again")


@pytest.mark.parametrize("end", ["given up", "deleted"])
async def test_a_placement_ends_with_its_attempt(world: World, end: str) -> None:
    replica = await world.replica(reservation_s=3600.0)
    await world.add_node("n1", slots=1)
    pod, waiter = await world.pod("slice"), await world.pod("waiter")
    await replica.filter(pod, "n1")
    assert not (await replica.filter(waiter, "n1"))["NodeNames"]

    if end == "deleted":
        await world.delete(pod)
    else:
        await world.set_status(
            pod,
            conditions=[
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        )

    async def is_offered() -> bool:
        return (await replica.filter(waiter, "n1"))["NodeNames"] == ["n1"]

    await eventually(is_offered, "the slot to be free again")


async def test_capacity_that_becomes_free_wakes_a_waiting_pod(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1", memory_mib=1000)
    holder, waiter = await world.pod("a", memory_mib=800), await world.pod("b", memory_mib=800)
    await replica.filter(holder, "n1")
    await replica.bind(holder, "n1")
    refused = await replica.filter(waiter, "n1")
    assert refused["FailedNodes"] == {"n1": "1/1 CardInsufficientMemory"}
    await world.set_status(
        waiter, conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    )

    await world.set_status(holder, phase="Failed")

    async def is_requeued() -> bool:
        found = (await world.read(waiter))["metadata"].get("annotations") or {}
        return "hami.io/retry-at" in found

    await eventually(is_requeued, "the waiting pod to be requeued")


async def test_a_pod_that_its_kubelet_refuses_gives_its_slices_back_with_the_reason(
    world: World,
) -> None:
    """The agent died after it reported that it was ready, and before Allocate."""
    replica, card = await world.replica_with_card(reconcile_s=60.0)
    pod = await world.bound_pod(replica)
    message = "Allocate failed due to no endpoint for the resource, which is unexpected"

    await world.set_status(pod, phase="Failed", reason="UnexpectedAdmissionError", message=message)

    failed = await world.until(pod, "failed")
    assert failed["reason"] == f"pod is Failed: UnexpectedAdmissionError: {message}"
    assert await world.used_amounts(card) == (0, 0, 0)
    history = await replica.get(f"/v1/pods/{pod['metadata']['uid']}/explain")
    assert message in str(history)


async def test_containers_that_run_on_after_their_grant_was_given_up_are_reported(
    world: World,
) -> None:
    replica, card = await world.replica_with_card(release_unconfirmed_s=0.2)
    pod = await world.bound_pod(replica)
    await world.delete(pod)
    ended = await world.until(pod, "released_unconfirmed")

    await world.publish_report(events.PodStays, ended)

    async def list_journal() -> list[dict[str, object]]:
        items = (await replica.get("/v1/drift?class=runs-without-grant"))["items"]
        return [one for one in items if pod["metadata"]["uid"] in one["subject"]]

    [line] = await eventually(list_journal, "the line in the journal")
    assert card in line["detail"]
    assert "kill them on the node" in line["detail"]
    assert line["repaired"] is False
    metrics = (await replica.http.get("/metrics")).text
    assert 'hami_scheduler_drift_total{class="runs-without-grant"} 1.0' in metrics

    async def is_written() -> bool:
        items = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
        mine = [e for e in items if e["involvedObject"]["uid"] == pod["metadata"]["uid"]]
        return ("RunsWithoutGrant", line["detail"]) in [(e["reason"], e["message"]) for e in mine]

    await eventually(is_written, "the event on the pod")


async def test_a_report_that_the_pod_of_a_live_grant_stays_changes_nothing(
    world: World,
) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.bound_pod(replica)
    grant = await world.until(pod, "bound")

    await world.publish_report(events.PodStays, grant)
    await world.publish_report(events.Allocated, grant)

    await world.until(pod, "allocated")
    items = (await replica.get("/v1/drift?class=runs-without-grant"))["items"]
    assert not [one for one in items if pod["metadata"]["uid"] in one["subject"]]
