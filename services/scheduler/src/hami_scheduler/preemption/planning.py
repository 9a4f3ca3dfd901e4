"""Input of preemption plans for a pod, gathered from the watches and the API server.

The search itself (`hamicommon/preemption`) runs in another process, which reads the ledger
(`bootstrap/simulating.py`).
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from hamicommon.admission.filling import fill_in
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.pod_annotations import PREEMPTION_DELAY
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.preemption.holders import (
    Wish,
    budget_room,
    for_holders,
    holders_of,
    protected_namespaces,
    wish_of,
)
from hamicommon.preemption.holdings import Holder, Holdings
from hamicommon.preemption.planner import Preview, preview
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from hami_scheduler.placement.closed_nodes import ClosedNodes
from hami_scheduler.ports.ledger import Row

BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
NAMESPACES = "/api/v1/namespaces"
PODS_IN_PART = 500
"""Number of pods per part: packing them takes some milliseconds of the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionQuestion:
    """Input of a preemption plan, except for the ledger's data."""

    pod: Json
    wish: Wish
    packed: Sequence[bytes]
    """Pods of the watch by uid, with the fields `holders_of` reads, in parts of some hundreds."""
    budgets: Sequence[Json]
    protected: frozenset[str]
    min_runtime_s: float
    closed: Mapping[str, frozenset[NodeName]]
    """Nodes that accept no pod now, by reason: `have a silent agent`, `are cordoned`."""
    offered: frozenset[NodeName] | None = None
    """Nodes that kube-scheduler offered for the pod; None if unknown, so all may be possible."""

    def candidates(self, nodes: Iterable[NodeName]) -> list[NodeName]:
        """Return which of these nodes are possible for the pod."""
        found = frozenset(nodes).difference(*self.closed.values())
        return sorted(found if self.offered is None else found & self.offered)

    def holders(self, rows: Sequence[Row]) -> list[Holder]:
        """Return the pods that hold these slices (rows of `PostgresQueries.held_at`)."""
        return holders_of(
            rows,
            {uid: pod for part in self.packed for uid, pod in pickle.loads(part)},  # our own
            self.budgets,
            self.protected,
            now=datetime.now(UTC),
            min_runtime_s=self.min_runtime_s,
        )


@dataclass(eq=False, kw_only=True)
class PreemptionPlans:
    """Gathers the input of preemption plans."""

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
        """Gather the input of a plan for the pod.

        Raises: InvalidRequest when its PriorityClass does not exist, Forbidden, Unavailable.
        """
        wish = wish_of(pod, await self._list(PRIORITY_CLASSES))
        budgets = await self._list(BUDGETS)
        protected = protected_namespaces(await self._list(NAMESPACES), self.protected)
        return PreemptionQuestion(
            pod=pod,
            wish=wish,
            packed=await self._pack_pods(offered),
            budgets=budgets,
            protected=protected,
            min_runtime_s=self.min_runtime_s,
            closed=self.closed.by_reason(),
            offered=offered,
        )

    async def _pack_pods(self, offered: frozenset[NodeName] | None) -> list[bytes]:
        """Pack the pods that may hold cards of these nodes, in parts to let other tasks run."""
        parts = []
        pods = iter(list(self.pods.items()))
        while some := list(islice(pods, PODS_IN_PART)):
            nodes = ((uid, pod, (pod.get("spec") or {}).get("nodeName")) for uid, pod in some)
            kept = [
                (uid, for_holders(pod))
                for uid, pod, node in nodes
                # A pod with a room has no node yet.
                if not node or offered is None or node in offered
            ]
            parts.append(pickle.dumps(kept))
            await asyncio.sleep(0)
        return parts

    async def _list(self, path: str) -> list[Json]:
        try:
            found: list[Json] = (await self.api.get(path)).get("items") or []
        except NotFound:
            # The local Kubernetes has no PodDisruptionBudgets.
            return []
        return found


def find_plans(
    question: PreemptionQuestion,
    view: ClusterView,
    rows: Sequence[Row],
    vendors: Vendors,
    defaults: Policy,
) -> Preview:
    """Search the best plans; `rows`: the pods that hold slices of the possible nodes.

    Raises: InvalidRequest when the pod asks for no card.
    """
    wants, _ = fill_in(question.pod, vendors)
    if not wants:
        raise InvalidRequest("the pod asks for no card: kube-scheduler's own preemption is for it")
    holdings = Holdings(
        question.holders(rows),
        view,
        now=datetime.now(UTC),
        budgets=budget_room(question.budgets),
    )
    return preview(
        pod_request(question.pod, vendors, defaults),
        question.wish.priority,
        holdings,
        candidates=question.candidates(view.nodes),
    )


def delay_s(pod: JsonMapping, default_s: float) -> float:
    """Return how long the pod must wait before pods are preempted for it."""
    try:
        wanted_s = PREEMPTION_DELAY.read(annotations_of(pod))
    except InvalidRequest:  # of a pod that the webhook did not see
        wanted_s = None
    return max(default_s, wanted_s or 0)
