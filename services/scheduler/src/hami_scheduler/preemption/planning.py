"""Plans of preemption for a pod: what the ledger, the watches and the API server know is gathered.

The search itself (`hamicommon/preemption`) runs in another process, on the ledger's cards
(`bootstrap/simulating.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hamicommon.admission.filling import fill_in
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.preemption.holders import (
    Wish,
    budget_room,
    holders_of,
    protected_namespaces,
    wish_of,
)
from hamicommon.preemption.planner import Holder, Preview, preview
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from hami_scheduler.placement.closed_nodes import ClosedNodes

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresQueries

BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
NAMESPACES = "/api/v1/namespaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionQuestion:
    """Everything that a plan depends on, but for the cards."""

    pod: Json
    wish: Wish
    holders: Sequence[Holder]
    budgets: Mapping[str, int]
    closed: Mapping[str, frozenset[NodeName]]
    """Nodes that take no pod now, by the reason: `have a silent agent`, `are cordoned`."""
    offered: frozenset[NodeName] | None = None
    """Nodes that kube-scheduler would let the pod go to; None: unknown, so all."""


@dataclass(eq=False, kw_only=True)
class PreemptionPlans:
    """Gather what a plan depends on."""

    queries: PostgresQueries
    api: KubeApi
    pods: Mapping[PodUid, JsonMapping]
    """Pods of the pod watch."""
    closed: ClosedNodes
    protected: Sequence[str]
    min_runtime_s: float
    search: Callable[[PreemptionQuestion], Awaitable[Preview]]

    async def question(
        self, pod: Json, offered: frozenset[NodeName] | None = None
    ) -> PreemptionQuestion:
        """Gather what a plan for the pod depends on.

        Raises: InvalidRequest when its PriorityClass does not exist, Forbidden, Unavailable.
        """
        wish = wish_of(pod, await self._list(PRIORITY_CLASSES))
        budgets = await self._list(BUDGETS)
        protected = protected_namespaces(await self._list(NAMESPACES), self.protected)
        now = datetime.now(UTC)
        nodes = self.closed.registered() if offered is None else offered
        rows = await self.queries.held_at(now, sorted(nodes), "")
        # Those of a large cluster take a second: beside the event loop.
        holders = await asyncio.to_thread(
            holders_of,
            rows,
            self.pods,
            budgets,
            protected,
            now=now,
            min_runtime_s=self.min_runtime_s,
        )
        return PreemptionQuestion(
            pod=pod,
            wish=wish,
            holders=holders,
            budgets=budget_room(budgets),
            closed=self.closed.by_reason(),
            offered=offered,
        )

    async def _list(self, path: str) -> list[Json]:
        try:
            found: list[Json] = (await self.api.get(path)).get("items") or []
        except NotFound:
            # The local Kubernetes has no PodDisruptionBudgets.
            return []
        return found


def find_plans(
    question: PreemptionQuestion, view: ClusterView, vendors: Vendors, defaults: Policy
) -> Preview:
    """Search the best plans. Raises: InvalidRequest when the pod asks for no card."""
    pod = question.pod
    wants, _ = fill_in(pod, vendors)
    if not wants:
        raise InvalidRequest("the pod asks for no card: kube-scheduler's own preemption is for it")
    candidates = frozenset(view.nodes).difference(*question.closed.values())
    if question.offered is not None:
        candidates &= question.offered
    return preview(
        pod_request(pod, vendors, defaults),
        question.wish.priority,
        view,
        question.holders,
        now=datetime.now(UTC),
        budgets=question.budgets,
        candidates=tuple(sorted(candidates)),
    )
