"""Choosing cards for a pod and assuming them: one pure choice over the state in memory.

Nothing is written, and nothing is waited for. /filter (`extender/filter.py`) offers many nodes,
/bind exactly one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.pod_owner import PodOwner
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import HamiError, QuotaConflict, Unschedulable
from hamicommon.explain.sentence import quota_sentence
from hamicommon.k8s.pod_object import owner_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Draft
from hamicommon.placement.engine import Decision, decide
from hamicommon.vendors.registry import Vendors
from opentelemetry.trace import get_tracer

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.quota import cards_beyond, quota_short
from hami_scheduler.placement.decisions.decision import DecisionTrace
from hami_scheduler.placement.decisions.decision_log import DecisionQueue
from hami_scheduler.placement.draft import draft_of
from hami_scheduler.placement.pod_requests import PodRequests

tracer = get_tracer(__name__)


class OverQuota(HamiError):
    """The namespace's quota refuses, whatever the node."""

    def __init__(self, conflict: QuotaConflict, vendors: Vendors) -> None:
        self.quota = quota_short(conflict, vendors)
        super().__init__(quota_sentence(self.quota))


class NoRoom(Unschedulable):
    """The one node that was asked for can't hold the pod."""

    def __init__(self, node: NodeName, reason: str) -> None:
        super().__init__({node: reason})
        self.args = (f"node {node} can't hold the pod: {reason}",)


class Placer:
    """Places pods."""

    def __init__(
        self,
        *,
        state: ClusterState,
        requests: PodRequests,
        recorder: DecisionQueue,
        binding_s: float,
        owner_of: Callable[[JsonMapping], PodOwner] = owner_of,
    ) -> None:
        """`binding_s`: how long a grant may stay in `binding`."""
        self._state = state
        self._requests = requests
        self._recorder = recorder
        self._binding_s = binding_s
        self._owner_of = owner_of

    def place(
        self, request: PodRequest, names: Sequence[NodeName], trace: DecisionTrace
    ) -> Draft | Decision:
        """Assume the best placement on these nodes and return its draft; if no node has room,
        return the decision with the refusal.

        The pod's earlier assumption is forgotten first. Raises: OverQuota.
        """
        state, cluster = self._state, self._state.cluster
        state.forget(request.uid, "placed again")
        beyond: frozenset[GpuUuid] = frozenset()
        conflict: QuotaConflict | None = None
        while True:
            with trace.phase("place"), tracer.start_as_current_span("place"):
                decision = decide(request, cluster, candidates=names, without_cards=beyond)
            trace.view_version, trace.scores = decision.view_version, decision.scores
            trace.frozen = self._recorder.frozen(cluster, decision.scores)
            if decision.placement is None:
                if conflict is not None:
                    raise OverQuota(conflict, self._requests.vendors)
                return decision
            draft = self._draft(request, decision.placement, trace)
            conflict = state.quotas.conflict(draft.namespace, draft.quota)
            if conflict is None:
                state.assume(draft)
                return draft
            # A percentage of a smaller card may still be within the quota.
            larger = cards_beyond(request, cluster, conflict, self._requests.vendors)
            if larger <= beyond:
                raise OverQuota(conflict, self._requests.vendors)
            beyond |= larger

    def _draft(self, request: PodRequest, placement: Placement, trace: DecisionTrace) -> Draft:
        cards = self._state.cluster.cards(placement.node)
        return draft_of(
            request,
            placement,
            {card.usage.device.uuid: card for card in cards},
            self._requests.vendors,
            now=datetime.now(UTC),
            lease_s=self._binding_s,
            owner=self._owner_of(trace.pod),
        )
