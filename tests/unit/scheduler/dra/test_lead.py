"""The ledger allocates to claims: whole, once, and given back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_scheduler.dra import placing
from hami_scheduler.ledger.state_machine import Transition
from hamicommon.domain.allocations import AllocationState, Origin
from hamicommon.domain.ids import PodUid
from hamicommon.k8s.annotations import TRACEPARENT
from hamicommon.k8s.types import Json
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.unit.scheduler.dra.world import CARD_MIB, HOLD_S, World


async def test_a_waiting_pod_s_claim_is_allocated_from_its_grant() -> None:
    world = World("n1")
    world.claim("a")
    uid = world.pod("a")

    await world.settle()

    live = await world.live(uid)
    assert (live.state, live.origin, live.node) == (AllocationState.BINDING, Origin.CLAIM, "n1")
    [result] = world.allocation("a")["devices"]["results"]
    assert result["driver"] == "gpu.hami.io"
    assert result["consumedCapacity"] == {"memory": "4096Mi", "cores": "10", "slots": "1"}
    assert "allocationTimestamp" in world.allocation("a")
    status = world.claims.kept["ns", "a"]["status"]
    assert status["reservedFor"] == [{"resource": "pods", "name": "a", "uid": uid}]
    assert world.claims.writes == 2
    await world.check()

    await world.bound(uid, "n1")
    await world.settle()
    assert (await world.live(uid)).state is AllocationState.BOUND
    assert world.claims.writes == 2


async def test_it_does_not_matter_whether_the_pod_or_its_claim_comes_first() -> None:
    world = World("n1")
    world.pod("late")
    await world.settle()
    world.claim("late")
    await world.settle()
    await world.check()
    assert world.allocation("late")


async def test_a_pod_without_room_waits_with_the_reason_and_gets_what_is_freed() -> None:
    world = World("n1")
    uids = []
    for name in ("a", "b", "c"):
        world.claim(name, mib=CARD_MIB)
        uids.append(world.pod(name))
        await world.settle()
        if world.allocation(name):
            await world.bound(uids[-1], "n1")
    assert not world.allocation("c")
    assert any("no available node" in event.message for event in world.events.shown)

    # Pod a goes: the watch releases its grant, the claim controller its claim.
    world.waiting.forget(uids[0])
    del world.pods[uids[0]]
    world.claims.put({k: v for k, v in world.claims.kept["ns", "a"].items() if k != "status"})
    live = await world.live(uids[0])
    gone = Transition(target=AllocationState.RELEASED, reason="gone")
    await world.transitions.apply(live, gone, actor="pod-watch")
    await world.settle()
    assert world.allocation("c")
    await world.check()


async def test_a_node_that_does_not_fit_is_left_for_another() -> None:
    world = World("n1", "n2")
    world.claim("a")
    uid = world.pod("a")
    await world.settle()
    first = world.node_of("a")

    world.taken_away("a")
    await world.settle()

    assert world.node_of("a") != first
    assert (await world.live(uid)).attempt == 2
    await world.check()


async def test_where_no_other_node_is_the_card_is_free_until_it_is_tried_again() -> None:
    world = World("n1")
    world.claim("a")
    world.pod("a")
    await world.settle()
    world.taken_away("a")
    await world.settle()
    assert (world.allocation("a"), world.ledger.used_mib()) == ({}, 0)
    world.now += 61
    await world.settle()
    assert world.node_of("a") == "n1"
    await world.check()


async def test_a_grant_does_not_wait_for_its_pod_for_ever() -> None:
    world = World("n1", "n2")
    world.claim("a")
    world.pod("a")
    await world.settle()
    first = world.node_of("a")
    world.now += HOLD_S
    await world.settle()
    assert world.node_of("a") != first
    await world.check()


def result(pool: str) -> Json:
    return {"request": "gpu", "driver": "gpu.hami.io", "shareID": "x", "pool": pool}


async def test_what_kube_scheduler_allocates_on_nodes_that_it_leads_stays() -> None:
    world = World("n1")
    claim = world.claim("a")
    status = {
        "allocation": {"devices": {"results": [result("follows")]}},
        "reservedFor": [{"resource": "pods", "name": "a", "uid": "pod-a"}],
    }
    world.claims.put({**claim, "status": status})
    world.pod("a")
    await world.settle()
    assert (world.claims.writes, world.ledger.used_mib()) == (0, 0)


async def test_an_allocation_that_is_of_no_grant_is_replaced() -> None:
    world = World("n1")
    claim = world.claim("a")
    forged = {"results": [result("n1")]}
    world.claims.put({**claim, "status": {"allocation": {"devices": forged}}})
    world.pod("a")
    await world.settle()
    await world.check()
    assert world.allocation("a")["devices"]["results"][0]["shareID"] != "x"


async def test_an_allocation_that_nobody_uses_is_taken_away() -> None:
    world = World("n1")
    claim = world.claim("a")
    forged = {"results": [result("n1")]}
    world.claims.put({**claim, "status": {"allocation": {"devices": forged}}})
    await world.lead.sweep()
    assert not world.allocation("a")


async def test_a_pod_that_comes_to_another_ones_claim_is_left_to_kube_scheduler() -> None:
    world = World("n1")
    world.claim("a")
    world.pod("a")
    await world.settle()
    before = world.allocation("a")
    world.pod("second", "a")
    await world.settle()
    assert not world.events.shown
    assert world.allocation("a") == before
    assert world.ledger.used_mib() == sum(
        share.memory_mib
        for grant in await world.ledger.live()
        for container in grant.containers
        for share in container.shares
    )
    assert len(await world.ledger.live()) == 1


async def test_of_pods_that_wait_with_one_claim_the_first_is_placed_for_all() -> None:
    world = World("n1")
    world.pod("first", "a")
    world.pod("second", "a")
    world.claim("a")
    await world.settle()
    [grant] = await world.ledger.live()
    assert grant.pod_name == "first"
    assert world.allocation("a")


async def test_limits_and_claims_in_one_pod_are_refused() -> None:
    world = World("n1")
    world.claim("a")
    limits = {"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "a"}]}
    world.pod("a", containers=[{"name": "cuda", "resources": limits}])
    await world.settle()
    assert any("by limits and by claims" in event.message for event in world.events.shown)
    assert not world.allocation("a")


async def test_what_is_refused_for_good_is_not_shown_again_by_each_sweep() -> None:
    world = World("n1")
    world.claim("a", allocationMode="All")
    world.pod("a")
    for _ in range(3):
        await world.settle()
        await world.lead.sweep()
    assert len(world.events.shown) == 1
    world.waiting.forget(PodUid("pod-a"))
    world.claim("a")
    world.pod("a")
    await world.settle()
    await world.check()
    assert world.allocation("a")


async def test_cards_in_mig_mode_are_no_claims() -> None:
    world = World("n1")
    for uuid, node in world.ledger.places.items():
        mig = replace(world.ledger.usage(uuid).device, mode="mig")
        world.ledger.add_card(node, mig)
    world.claim("a")
    world.pod("a")
    await world.settle()
    assert not world.allocation("a")


async def test_pods_of_other_claims_and_gated_pods_are_left_alone() -> None:
    world = World("n1")
    world.claim("other", deviceClassName="other.example.com")
    world.pod("other")
    world.claim("gated")
    world.pod("gated", schedulingGates=[{"name": "g"}])
    await world.settle()
    assert (world.claims.writes, world.ledger.used_mib()) == (0, 0)


async def test_a_bound_pod_that_lost_its_allocation_gets_one_on_its_node() -> None:
    world = World("n1", "n2")
    world.claim("a")
    uid = world.pod("a")
    await world.settle()
    node = world.node_of("a")
    await world.bound(uid, node)
    world.taken_away("a")
    await world.settle()
    assert world.node_of("a") == node
    await world.check()


async def test_two_claims_of_one_pod_are_one_grant() -> None:
    world = World("n1")
    world.claim("a", mib=1024)
    world.claim("b", mib=1024)
    uid = world.pod("two", "a", "b")
    await world.settle()
    [container] = (await world.live(uid)).containers
    assert len({share.uuid for share in container.shares}) == 2
    await world.check()


async def run_once(die_at: int | None) -> World:
    """A pod of two claims is placed, its node turns out unfit, and it is placed again."""
    world = World("n1", "n2")
    world.claim("a", mib=1024)
    world.claim("b", mib=1024)
    uid = world.pod("two", "a", "b")
    world.calls.die_at = die_at
    await world.settle()
    if die_at is not None and world.calls.made >= die_at:
        world.restart()
        await world.settle()
    await world.check()
    world.taken_away("a")
    await world.settle()
    if die_at is not None and world.calls.die_at is not None and world.calls.made >= die_at:
        world.restart()
        await world.settle()
        # It did not see that the allocation was taken away: kube-scheduler does so again.
        if world.waiting.cleared or not world.allocation("a"):
            await world.settle()
    await world.check()
    assert (await world.live(uid)).live
    return world


async def test_nothing_leaks_when_the_scheduler_dies_between_any_two_steps() -> None:
    whole = await run_once(None)
    assert whole.calls.made >= 20
    for number in range(1, whole.calls.made + 1):
        world = await run_once(number)
        assert world.ledger.used_mib() == 2048, number


@pytest.mark.parametrize("count", [2, 3])
async def test_replicas_that_lead_at_once_make_one_grant(count: int) -> None:
    world = World("n1", "n2")
    world.claim("a")
    uid = world.pod("a")
    others = []
    for _ in range(count - 1):
        others.append((world.lead, world.waiting))
        world.restart()
    for _ in range(6):
        await world.lead.once()
        for lead, waiting in others:
            waiting.claim_seen(world.claims.kept["ns", "a"], None)
            await lead.once()
        world.now += 1
    assert (await world.live(uid)).attempt == 1
    await world.check()


async def test_a_grant_of_claims_has_a_trace_linked_to_the_pods_admission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(placing, "tracer", provider.get_tracer("claims"))
    admission = f"00-{'a' * 32}-{'b' * 16}-01"
    world = World("n1")
    world.claim("a", mib=CARD_MIB)
    uid = world.pod("a", annotations={TRACEPARENT: admission})
    world.claim("b", mib=2 * CARD_MIB)
    refused = world.pod("b")
    await world.settle()

    by_uid = {
        span.attributes["k8s.pod.uid"]: span
        for span in exporter.get_finished_spans()
        if span.attributes is not None
    }
    granted = by_uid[uid]
    trace_id = f"{granted.get_span_context().trace_id:032x}"
    assert granted.name == "claims"
    assert [f"{link.context.trace_id:032x}" for link in granted.links] == ["a" * 32]
    # The node goes on with this trace: it is in the grant.
    assert (await world.live(uid)).traceparent.split("-")[1] == trace_id
    assert by_uid[refused].attributes["hami.outcome"] == "refused"
