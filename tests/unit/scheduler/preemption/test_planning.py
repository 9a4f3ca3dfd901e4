"""A plan is made of what the ledger, the watches and the API server know."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

import pytest
from hami_scheduler.placement.closed_nodes import ClosedNodes
from hami_scheduler.preemption.planning import PreemptionPlans
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import NotFound
from hamicommon.k8s.types import Json, JsonMapping

M, N = NodeName("m"), NodeName("n")
LOW: Json = {
    "metadata": {"name": "low", "namespace": "team", "uid": "low"},
    "spec": {"priority": 10},
}
HIGH: Json = {"metadata": {"name": "high", "namespace": "team"}, "spec": {"priority": 1000}}


class Rows:
    """The ledger, which notes the nodes that it was asked about."""

    def __init__(self) -> None:
        self.asked: Sequence[str] = ()

    async def held_at(self, at: datetime, nodes: Sequence[str], namespace: str) -> list[Json]:
        del at, namespace
        self.asked = nodes
        row = {"pod_uid": "low", "node": "n", "namespace": "team", "pod_name": "low"}
        grant = {"allocation_id": "g", "state": "allocated", "origin": "scheduled"}
        share = {"container_index": 0, "container_name": "c", "role": "app", "vendor": "NVIDIA"}
        amounts = {"device_uuid": "a", "memory_mib": 1, "core_percent": 1, "slots": 1}
        return [row | grant | share | amounts | {"detail": None, "releasing_at": None}]


class Objects:
    """An API server without PodDisruptionBudgets, which is what the local Kubernetes is."""

    async def get(self, path: str) -> Json:
        if "poddisruptionbudgets" in path:
            raise NotFound(path)
        return {"items": []}


class Pods(dict[PodUid, JsonMapping]):
    """Pods of the watch, which note the threads that read them."""

    def __init__(self) -> None:
        super().__init__({PodUid("low"): LOW})
        self.threads: set[int] = set()

    def get(self, uid: PodUid, default: Any = None) -> Any:
        self.threads.add(threading.get_ident())
        return super().get(uid, default)


@pytest.mark.parametrize(
    ("offered", "asked"),
    [(None, ["m", "n"]), (frozenset({N}), ["n"])],
    ids=["where the pod may go is unknown", "the nodes that it was offered"],
)
async def test_only_pods_on_nodes_that_count_are_read_and_beside_the_event_loop(
    offered: frozenset[NodeName] | None, asked: list[str]
) -> None:
    rows, pods = Rows(), Pods()
    closed = ClosedNodes(registered=lambda: {M, N}, objects=tuple, silent=frozenset)
    plans = PreemptionPlans(
        queries=cast(Any, rows),
        api=cast(Any, Objects()),
        pods=pods,
        closed=closed,
        protected=("kube-system",),
        min_runtime_s=0,
        search=cast(Any, None),
    )

    question = await plans.question(HIGH, offered)

    assert rows.asked == asked
    assert [(one.pod, one.priority, one.shield) for one in question.holders] == [
        ("team/low", 10, "")
    ]
    assert (question.wish.priority, question.budgets, question.offered) == (1000, {}, offered)
    assert threading.get_ident() not in pods.threads
