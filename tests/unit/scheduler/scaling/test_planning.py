"""The pods that need nodes, and the answer of the planning process."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.rooms import Rooms
from hami_scheduler.placement.group_members import GroupMembers
from hami_scheduler.placement.waiting_pods import WaitingPod, WaitingPods
from hami_scheduler.ports.ledger import HeldRoom
from hami_scheduler.scaling.planning import ScaleAnswer, ScaleQuestions, plan_scaling
from hamicommon import device_config
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.k8s.types import Json
from hamicommon.ledger.model import QuotaUse
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.scaling.node_types import NodeType, TypeEntry
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests import measured
from tests.unit.devices import a_device
from tests.unit.scheduler.states import state_of

VENDORS = Vendors.from_config(device_config.load(None))
NOW = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
ENTRY = TypeEntry.model_validate(
    {"name": "t", "cards": [{"count": 1, "type": "A100", "memory": 10_000}]}
)


def pod(name: str, memory_mib: int = 8000, **more: Any) -> Json:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
    created = more.pop("created", "2026-11-30T12:00:00Z")
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "creationTimestamp": created,
        },
        "spec": {
            "containers": [
                {"name": "c", "resources": {"limits": limits, "requests": {"cpu": "2"}}}
            ],
            **more,
        },
    }


def questions(
    *pods: Json,
    rooms: Rooms | None = None,
    state: ClusterState | None = None,
    nodes: tuple[Json, ...] = (),
    running: tuple[Json, ...] = (),
    entries: tuple[TypeEntry, ...] = (ENTRY,),
    members: GroupMembers | None = None,
) -> ScaleQuestions:
    now = NOW
    waiting = WaitingPods(clock=lambda: now.timestamp())
    for each in pods:
        metadata = each["metadata"]
        now = datetime.fromisoformat(metadata["creationTimestamp"])
        waiting.add(
            WaitingPod(
                uid=PodUid(metadata["uid"]),
                namespace="team",
                name=metadata["name"],
                created_at=metadata["creationTimestamp"],
                priority=each["spec"].get("priority", 0),
                request=pod_request(each, VENDORS),
            )
        )
    now = NOW
    return ScaleQuestions(
        state=state or state_of(),
        waiting=waiting,
        rooms=rooms or Rooms(),
        members=members,
        our_pods={PodUid(each["metadata"]["uid"]): each for each in pods},
        all_pods=lambda: running,
        all_nodes=lambda: nodes,
        vendors=VENDORS,
        entries=entries,
        group_labels=("group",),
        after_s=10.0,
    )


def room_of(name: str) -> HeldRoom:
    return HeldRoom(
        id=AllocationId("r"),
        pod_uid=PodUid(name),
        namespace="team",
        pod_name=name,
        node=NodeName("n"),
        priority=5,
        memory_mib=1000,
    )


def test_pods_are_due_in_the_order_of_the_queue_after_a_while() -> None:
    young = pod("young", created="2026-11-30T12:00:25Z")
    old, urgent = pod("old", created="2026-11-30T11:00:00Z"), pod("urgent", priority=5)

    assert [each.name for each in questions(young, old, urgent).due()] == ["urgent", "old"]


def test_preemption_goes_first() -> None:
    """Others end for this pod already; one whose annotation has others live for longer is due."""
    rooms = Rooms()
    rooms.replace([room_of("preempts")])
    polite = pod("polite")
    polite["metadata"]["annotations"] = {"hami.io/preemption-delay-seconds": "600"}

    assert [each.name for each in questions(pod("preempts"), polite, rooms=rooms).due()] == [
        "polite"
    ]


def test_no_node_is_wanted_for_what_a_quota_keeps_waiting() -> None:
    state = state_of()
    state.quotas.load(
        [QuotaUse(namespace="team", resource="nvidia.com/gpumem", limit=20_000, used=3000)]
    )

    found = questions(pod("a"), pod("b"), pod("c"), state=state).due()

    assert [each.name for each in found] == ["a", "b"]


async def answer(
    asked: ScaleQuestions, held: set[PodUid] | None = None, **more: Any
) -> ScaleAnswer:
    options: Mapping[str, Any] = {
        "coming": {},
        "leaving_out": (),
        "kept": (),
        "closed": {},
        **more,
    }
    question = await asked.question(asked.due(), **options)
    return plan_scaling(question, ClusterView(VENDORS.rules), held or set(), VENDORS)


async def test_a_pod_that_holds_cards_by_now_is_left_out() -> None:
    found = await answer(questions(pod("a"), pod("b")), {PodUid("a")})

    assert found.plan.placed == {"b": "t/1"}
    assert found.hosts[NodeName("t/1")].cpu_milli == 2000


async def test_nodes_that_come_are_filled_first() -> None:
    found = await answer(questions(pod("a"), pod("b")), coming={NodeName("p1"): "t"})

    assert found.plan.placed == {"a": "p1", "b": "t/2"}


@pytest.mark.parametrize(("why", "opened"), [("", {"t/1"}), ("is wrong: other cards", set())])
async def test_no_node_of_a_closed_type_is_opened(why: str, opened: set[str]) -> None:
    found = await answer(questions(pod("a")), closed={"t": why})

    assert set(found.plan.opened) == opened
    assert list(found.plan.refused) == ([f"t {why}"] if why else [])


async def test_a_kept_type_takes_bounds_of_the_file_and_one_never_seen_is_no_mistake() -> None:
    kept = NodeType(
        name="g", labels={"group": "g"}, selector={"group": "g"}, cards=(a_device(type="A10"),)
    )
    bounds = TypeEntry.model_validate({"name": "g", "max": 1})
    unseen = TypeEntry.model_validate({"name": "x", "max": 1})
    pods = [pod(name, 60_000) for name in "abcd"]

    found = await answer(questions(*pods, entries=(bounds, unseen)), kept=[kept])

    assert set(found.plan.opened) == {"g/1"}
    assert [kind.name for kind in found.types] == ["g"]
    assert list(found.plan.refused) == ["g is at its max of 1 node"]


async def test_a_node_that_leaves_takes_no_pod() -> None:
    node: Json = {"metadata": {"name": "n"}, "spec": {}, "status": {}}
    view = ClusterView(VENDORS.rules)
    view.set_node(NodeName("n"), [CardState(DeviceUsage(device=a_device()), 1)])
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    leaves = node | {"spec": {"taints": [taint]}}
    not_ready = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    starts = node | {"spec": {"taints": [not_ready]}}

    async def place(node: Json) -> Mapping[str, NodeName]:
        asked = questions(pod("a"), nodes=(node,))
        question = await asked.question(asked.due(), coming={}, leaving_out=(), kept=(), closed={})
        return plan_scaling(question, view, set(), VENDORS).plan.placed

    assert await place(leaves) == {"a": "t/1"}
    assert await place(starts) == {"a": "n"}


@pytest.mark.parametrize("policy", ["binpack", "spread"])
async def test_a_requested_node_is_used_once_those_that_exist_and_earlier_ones_are_full(
    policy: str,
) -> None:
    node: Json = {"metadata": {"name": "n"}, "spec": {}, "status": {}}
    view = ClusterView(VENDORS.rules)
    view.set_node(NodeName("n"), [CardState(DeviceUsage(device=a_device(memory_mib=10_000)), 1)])
    pods = [pod(name, 4000) for name in "abcd"]
    for each in pods:
        each["metadata"]["annotations"] = {"hami.io/node-scheduler-policy": policy}
    asked = questions(*pods, nodes=(node,))
    coming = {NodeName(name): "t" for name in ("first", "last")}

    question = await asked.question(asked.due(), coming=coming, leaving_out=(), kept=(), closed={})
    placed = plan_scaling(question, view, set(), VENDORS).plan.placed

    assert placed == {"a": "n", "b": "n", "c": "first", "d": "first"}


async def test_pods_that_are_alike_are_one_shape_of_the_question() -> None:
    asked = questions(*(pod(f"p{number}") for number in range(9)), pod("other", 100))

    question = await asked.question(asked.due(), coming={}, leaving_out=(), kept=(), closed={})

    assert len(question.shapes) == 2
    assert len(question.pods) == 10


def build_group(*pods: Json, quorum: int) -> tuple[list[Json], GroupMembers]:
    members = GroupMembers(lambda each: pod_request(each, VENDORS), lambda _: None, "ours")
    for each in pods:
        each["metadata"] |= {
            "labels": {"scheduling.x-k8s.io/pod-group": "g"},
            "annotations": {"hami.io/group-min": str(quorum)},
        }
        each["spec"]["schedulerName"] = "ours"
        members.pod_seen(each)
    return list(pods), members


async def test_a_group_is_one_demand() -> None:
    """No node is added for three pods that start together if only two are allowed."""
    bounded = ENTRY.model_copy(update={"max": 2})
    pods, members = build_group(*(pod(f"g{number}") for number in range(3)), quorum=3)
    alone = pod("alone")

    found = await answer(questions(*pods, alone, members=members, entries=(bounded,)))

    assert found.plan.placed == {"alone": "t/1"}
    assert list(found.plan.refused) == ["t is at its max of 2 nodes"]
    enough = ENTRY.model_copy(update={"max": 4})
    found = await answer(questions(*pods, alone, members=members, entries=(enough,)))
    assert len(found.plan.opened) == 4


async def test_pods_beyond_those_that_start_together_go_alone() -> None:
    bounded = ENTRY.model_copy(update={"max": 2})
    pods, members = build_group(*(pod(f"g{number}") for number in range(3)), quorum=2)

    found = await answer(questions(*pods, members=members, entries=(bounded,)))

    assert len(found.plan.placed) == 2


def test_no_node_is_wanted_for_a_group_that_is_not_complete() -> None:
    pods, members = build_group(pod("a"), pod("b"), quorum=3)

    assert questions(*pods, members=members).due() == []


@pytest.mark.slow
@pytest.mark.timed
async def test_a_thousand_waiting_pods_are_planned_on_a_thousand_nodes() -> None:
    """In another process; what the event loop gathers for it is done in short steps."""
    view, chance = ClusterView(VENDORS.rules), random.Random(52)
    for number in range(1000):
        cards = [
            DeviceUsage(
                device=a_device(f"GPU-{number}-{index}", index=index),
                used_slots=1,
                used_memory_mib=70_000,
            )
            for index in range(8)
        ]
        view.set_node(NodeName(f"n{number}"), [CardState(card, 1) for card in cards])
    entries = tuple(
        TypeEntry.model_validate(
            {
                "name": f"t{price}",
                "price": price,
                "cards": [{"count": 8, "type": "NVIDIA A100", "memory": 81_920}],
            }
        )
        for price in (1, 2)
    )
    sizes = [chance.randrange(1, 81) * 1000 for _ in range(25)]
    pods = [pod(f"p{number}", chance.choice(sizes)) for number in range(1000)]
    nodes = tuple({"metadata": {"name": f"n{number}"}} for number in range(1000))
    running = tuple(
        pod(f"r{number}", 0, nodeName=f"n{number % 1000}") | {"status": {"phase": "Running"}}
        for number in range(10_000)
    )
    asked = questions(*pods, nodes=nodes, running=running, entries=entries)

    began = time.process_time()
    question = await asked.question(asked.due(), coming={}, leaving_out=(), kept=(), closed={})
    gathered = time.process_time()
    found = plan_scaling(question, view, set(), VENDORS)

    measured.note(
        f"gathered in {gathered - began:.2f} s of processor, planned in "
        f"{time.process_time() - gathered:.2f} s: {len(found.plan.opened)} new nodes"
    )
    assert len(found.plan.placed) == 1000
    assert {kind.name for kind in found.plan.opened.values()} == {"t1"}
