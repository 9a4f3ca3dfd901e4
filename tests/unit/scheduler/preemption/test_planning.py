"""A plan is made of what the ledger, the watches and the API server know."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest
from hami_scheduler.placement.closed_nodes import ClosedNodes
from hami_scheduler.preemption.planning import PODS_IN_PART, PreemptionPlans
from hami_scheduler.watch.trim import trimmed_pod
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import NotFound
from hamicommon.k8s.types import Json

M, N = NodeName("m"), NodeName("n")
HIGH: Json = {"metadata": {"name": "high", "namespace": "team"}, "spec": {"priority": 1000}}


def pod_of(name: str, priority: int, **spec: Any) -> Json:
    metadata = {"name": name, "namespace": "team", "uid": name}
    return {"metadata": metadata, "spec": {"priority": priority, **spec}}


def row_of(pod: str, node: str, state: str = "allocated") -> Json:
    grant = {"allocation_id": pod, "state": state, "origin": "scheduled", "releasing_at": None}
    names = {"pod_uid": pod, "node": node, "namespace": "team", "pod_name": pod}
    share = {"container_index": 0, "container_name": "c", "role": "app", "vendor": "NVIDIA"}
    amounts = {"device_uuid": "a", "memory_mib": 1, "core_percent": 1, "slots": 1}
    return names | grant | share | amounts | {"detail": None}


class Objects:
    """An API server without PodDisruptionBudgets, which is what the local Kubernetes is."""

    async def get(self, path: str) -> Json:
        if "poddisruptionbudgets" in path:
            raise NotFound(path)
        return {"items": []}


def plans(*pods: Json) -> PreemptionPlans:
    shut = {"metadata": {"name": "shut"}, "spec": {"unschedulable": True}}
    nodes = {M, N, NodeName("shut")}
    return PreemptionPlans(
        api=cast(Any, Objects()),
        pods={PodUid(pod["metadata"]["uid"]): trimmed_pod(pod) for pod in pods},
        closed=ClosedNodes(registered=lambda: nodes, objects=lambda: [shut], silent=frozenset),
        protected=("kube-system",),
        min_runtime_s=0,
        search=cast(Any, None),
    )


@pytest.mark.parametrize(
    ("offered", "candidates"),
    [(None, ["m", "n"]), (frozenset({N, NodeName("shut")}), ["n"])],
    ids=["where the pod may go is unknown", "it was offered some nodes"],
)
async def test_a_plan_is_made_for_the_nodes_that_the_pod_may_go_to(
    offered: frozenset[NodeName] | None, candidates: list[str]
) -> None:
    question = await plans().question(HIGH, offered)

    assert question.candidates([M, N, NodeName("shut")]) == candidates
    assert (question.wish.priority, list(question.budgets)) == (1000, [])


async def test_holders_on_the_offered_nodes_and_pods_with_rooms_have_what_decides_of_them() -> None:
    made = plans(
        pod_of("low", 10, nodeName="n"),
        pod_of("elsewhere", 10, nodeName="m"),
        pod_of("waits", 50),
        *(pod_of(f"more-{number}", 5, nodeName="n") for number in range(PODS_IN_PART)),
    )
    question = await made.question(HIGH, frozenset({N}))
    rows = [row_of("low", "n"), row_of("more-7", "n"), row_of("waits", "n", "reserved")]

    found = pickle.loads(pickle.dumps(question)).holders(rows)

    assert [(each.uid, each.priority, each.is_room, each.is_ending) for each in found] == [
        ("low", 10, False, False),
        ("more-7", 5, False, False),
        ("waits", 50, True, False),
    ]
    assert len(question.packed) == 2
    assert b"elsewhere" not in b"".join(question.packed)
