"""`POST /v1/preempt`: which pods would have to end for a pod to fit now; nothing ends.

Gathers what the ledger, the pod watch and the API server know; the plan is computed beside the
event loop (`bootstrap/simulating.py`), on the ledger's cards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import orjson
from hamicommon.admission.filling import fill_in
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.k8s.validation import check_pod
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.preemption.answer import as_json
from hamicommon.preemption.holders import (
    Wish,
    budget_room,
    holders_of,
    protected_namespaces,
    wish_of,
)
from hamicommon.preemption.planner import Holder, preview
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ports.cluster import PodApi

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresQueries

BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
NAMESPACES = "/api/v1/namespaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionQuestion:
    """Everything that the plan depends on, but for the cards."""

    pod: Json
    wish: Wish
    holders: Sequence[Holder]
    budgets: Mapping[str, int]
    closed: Mapping[str, frozenset[NodeName]]
    """Nodes that take no pod now, by the reason: `is silent`, `is cordoned`."""


@dataclass(eq=False, kw_only=True)
class PreemptionPreviews:
    """The use case of /v1/preempt."""

    queries: PostgresQueries
    api: KubeApi
    pod_api: PodApi
    pods: Mapping[PodUid, JsonMapping]
    """Pods of the pod watch."""
    nodes: Callable[[], Collection[NodeName]]
    silent: Callable[[], Collection[NodeName]]
    """Nodes whose agents are silent."""
    node_objects: Callable[[], Iterable[JsonMapping]]
    """Nodes of the node watch."""
    protected: Sequence[str]
    plan: Callable[[PreemptionQuestion], Awaitable[bytes]]
    is_on: bool = True

    async def answer(self, body: object) -> bytes:
        """Return the best plans for the pod of the body, or for the waiting pod that it names.

        Raises: InvalidRequest, NotFound, Forbidden, Unavailable.
        """
        if not self.is_on:
            raise InvalidRequest(
                "previews of preemption are off here (HAMI_SCHEDULER_PREEMPTION_MODE=off)"
            )
        pod = await self._pod(body if isinstance(body, dict) else {})
        check_pod(pod)
        wish = wish_of(pod, await self._list(PRIORITY_CLASSES))
        budgets = await self._list(BUDGETS)
        protected = protected_namespaces(await self._list(NAMESPACES), self.protected)
        cordoned = frozenset(
            NodeName(node["metadata"]["name"])
            for node in self.node_objects()
            if (node.get("spec") or {}).get("unschedulable")
        )
        rows = await self.queries.held_at(datetime.now(UTC), sorted(self.nodes()), "")
        return await self.plan(
            PreemptionQuestion(
                pod=pod,
                wish=wish,
                holders=holders_of(rows, self.pods, budgets, protected),
                budgets=budget_room(budgets),
                closed={
                    "are cordoned": cordoned,
                    "have a silent agent": frozenset(self.silent()) - cordoned,
                },
            )
        )

    async def _pod(self, body: Json) -> Json:
        """Return the pod of the body, or the one of the cluster that it names."""
        pod, namespace, name = body.get("pod"), body.get("namespace"), body.get("name")
        if isinstance(pod, dict):
            return pod
        if not (isinstance(namespace, str) and isinstance(name, str) and namespace and name):
            raise InvalidRequest('expected {"pod": Pod}, or {"namespace": ..., "name": ...}')
        try:
            found = await self.pod_api.get(namespace, name)
        except NotFound:
            raise NotFound(f"pod {namespace}/{name} does not exist") from None
        node = (found.get("spec") or {}).get("nodeName")
        if node:
            raise InvalidRequest(f"pod {namespace}/{name} is on node {node} already")
        return found

    async def _list(self, path: str) -> list[Json]:
        try:
            found: list[Json] = (await self.api.get(path)).get("items") or []
        except NotFound:
            # The local Kubernetes has no PodDisruptionBudgets.
            return []
        return found


def planned(
    question: PreemptionQuestion, view: ClusterView, vendors: Vendors, defaults: Policy
) -> bytes:
    """Plan and write the answer. Raises: InvalidRequest when the pod asks for no card."""
    pod = question.pod
    wants, _ = fill_in(pod, vendors)
    if not wants:
        raise InvalidRequest("the pod asks for no card: kube-scheduler's own preemption is for it")
    now = datetime.now(UTC)
    candidates = frozenset(view.nodes).difference(*question.closed.values())
    found = preview(
        pod_request(pod, vendors, defaults),
        question.wish.priority,
        view,
        question.holders,
        now=now,
        budgets=question.budgets,
        candidates=tuple(sorted(candidates)),
    )
    metadata = pod.get("metadata") or {}
    about = {"name": metadata.get("name"), "namespace": metadata.get("namespace") or "default"}
    answer = as_json(
        found,
        view=view,
        priority=question.wish.priority,
        budgets=question.budgets,
        now=now,
        may_preempt=question.wish.may_preempt,
        closed={why: len(nodes.intersection(view.nodes)) for why, nodes in question.closed.items()},
    )
    return orjson.dumps(about | answer)
