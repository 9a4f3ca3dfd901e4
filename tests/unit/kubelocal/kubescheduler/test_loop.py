"""The same cases on our loop and on the real kube-scheduler, over the emulator and a real server.

Where the two differ, ours is wrong.
"""

import pytest

from tests.unit.kubelocal.kubescheduler.worlds import PODS, Kind, World
from tests.waiting import eventually

pytestmark = pytest.mark.integration

NO_CARD = "0/1 nodes are available: 1 no card."
TOO_LARGE = "0/1 nodes are available: 1 Insufficient cpu."
# Any event requeues what an extender refused (SchedulerQueueingHints).
ANY_EVENT_REQUEUES = (1, 32)
# The errors of a binding stand in the condition without a sentence before them.
BARE_BINDING_ERRORS = (1, 26)


async def test_a_pod_is_bound_by_the_extender_and_an_event_reports_it(world: World) -> None:
    await world.node("a")
    await world.pod("p")
    assert await world.wait_for_binding("p") == "a"
    (event,) = await world.events("p", "Scheduled")
    assert event["message"] == "Successfully assigned default/p to a"
    assert event["type"] == "Normal"


async def test_a_pod_that_is_not_the_extenders_is_bound_without_it(world: World) -> None:
    await world.node("a")
    await world.pod("p", gpu=False)
    assert await world.wait_for_binding("p") == "a"
    assert world.extender.filtered == []


async def test_the_reasons_of_all_nodes_are_in_one_sentence(world: World) -> None:
    await world.node("a")
    await world.node("b")
    await world.node("c", unschedulable=True)
    world.extender.refused = {"a": "CardInsufficientMemory", "b": "CardInsufficientMemory"}
    await world.pod("p")
    sentence = "0/3 nodes are available: 1 node(s) were unschedulable, 2 CardInsufficientMemory."
    assert (await world.wait_for_refusal("p", sentence))["reason"] == "Unschedulable"
    events = await world.events("p", "FailedScheduling")
    assert events[-1]["type"] == "Warning"
    assert any(event["message"].startswith(sentence) for event in events)


async def test_a_pod_too_large_for_every_node_does_not_reach_the_extender(world: World) -> None:
    await world.node("a")
    await world.pod("p", cpu="3")
    await world.wait_for_refusal("p", TOO_LARGE)
    assert world.extender.filtered == []


async def test_a_waiting_pod_is_tried_again_when_its_annotation_is_patched(world: World) -> None:
    await world.node("a")
    world.extender.refused = {"a": "no card"}
    await world.pod("p")
    await world.wait_for_refusal("p", NO_CARD)
    world.extender.refused = {}
    await world.api.patch(f"{PODS}/p", {"metadata": {"annotations": {"hami.io/retry-at": "1"}}})
    assert await world.wait_for_binding("p") == "a"


async def test_a_waiting_pod_is_tried_again_when_a_node_is_labelled(world: World) -> None:
    await world.node("a")
    world.extender.refused = {"a": "no card"}
    await world.pod("p")
    await world.wait_for_refusal("p", NO_CARD)
    world.extender.refused = {}
    await world.api.patch("/api/v1/nodes/a", {"metadata": {"labels": {"gpu": "on"}}})
    assert await world.wait_for_binding("p") == "a"


async def test_a_waiting_pod_is_tried_again_when_a_placed_one_is_deleted(world: World) -> None:
    await world.node("a")
    await world.pod("first", cpu="2")
    await world.wait_for_binding("first")
    await world.pod("second", cpu="2")
    await world.wait_for_refusal("second", TOO_LARGE)
    await world.api.delete(f"{PODS}/first", {"gracePeriodSeconds": 0})
    assert await world.wait_for_binding("second") == "a"


async def test_a_pod_that_an_extender_refused_is_left_alone_while_nothing_changes(
    world: World, kind: Kind
) -> None:
    """From 1.32 on the change of the pod's own condition is an event: one attempt more."""
    attempts = 2 if kind.since(ANY_EVENT_REQUEUES) else 1
    await world.node("a")
    world.extender.refused = {"a": "no card"}
    for name in ("p", "q"):
        await world.pod(name)
        await world.wait_for_refusal(name, NO_CARD)
        await world.wait_for_attempts(name, attempts)
    # q's attempts took as long as one more of p would have.
    assert world.extender.filtered.count("p") == attempts


async def test_another_pods_binding_requeues_what_an_extender_refused(
    world: World, kind: Kind
) -> None:
    """From 1.32 on; an older kube-scheduler waits for a node or for a pod that leaves one."""
    attempts = 2 if kind.since(ANY_EVENT_REQUEUES) else 1
    await world.node("a")
    world.extender.refused = {"a": "no card"}
    await world.pod("p")
    await world.wait_for_refusal("p", NO_CARD)
    await world.wait_for_attempts("p", attempts)
    world.extender.refused = {}
    await world.pod("r")
    await world.wait_for_binding("r")
    if kind.since(ANY_EVENT_REQUEUES):
        assert await world.wait_for_binding("p") == "a"
    else:
        assert world.extender.filtered.count("p") == attempts


async def test_another_pods_binding_requeues_nothing_that_the_filters_refused(
    world: World,
) -> None:
    await world.node("a")
    await world.pod("p", cpu="3")
    await world.wait_for_refusal("p", TOO_LARGE)
    await world.pod("q")
    await world.wait_for_binding("q")
    await world.pod("r")
    await world.wait_for_binding("r")
    (event,) = await world.events("p", "FailedScheduling")
    assert event.get("count") in (None, 0, 1)
    assert world.extender.filtered.count("p") == 0


async def test_a_pod_counts_on_its_node_while_its_binding_is_on_its_way(world: World) -> None:
    await world.node("a")
    world.extender.bind_gate.clear()
    await world.pod("first", cpu="2")
    await eventually(lambda: _read_soon(world.extender.filtered))
    await world.pod("second", cpu="2")
    await world.wait_for_refusal("second", TOO_LARGE)
    world.extender.bind_gate.set()
    assert await world.wait_for_binding("first") == "a"


async def test_a_rejected_binding_is_the_pods_condition_and_the_pod_is_tried_again(
    world: World, kind: Kind
) -> None:
    before = "" if kind.since(BARE_BINDING_ERRORS) else "binding rejected: "
    await world.node("a")
    world.extender.bind_errors = ["node lock is held"]
    await world.pod("p")
    condition = await world.wait_for_refusal("p", before + "node lock is held")
    assert condition["reason"] == "SchedulerError"
    await world.api.patch(f"{PODS}/p", {"metadata": {"annotations": {"hami.io/retry-at": "1"}}})
    assert await world.wait_for_binding("p") == "a"


async def test_an_error_of_the_extender_is_the_pods_condition(world: World) -> None:
    await world.node("a")
    world.extender.error = "the ledger is away"
    await world.pod("p")
    await world.wait_for_refusal("p", "the ledger is away")
    world.extender.error = ""
    await world.api.patch(f"{PODS}/p", {"metadata": {"annotations": {"hami.io/retry-at": "1"}}})
    assert await world.wait_for_binding("p") == "a"


async def test_a_pod_of_another_scheduler_is_left_alone(world: World) -> None:
    await world.node("a")
    await world.pod("other", schedulerName="somebody-else")
    await world.pod("ours")
    await world.wait_for_binding("ours")
    assert "other" not in world.extender.filtered


async def _read_soon(values: list[str]) -> list[str]:
    return values
