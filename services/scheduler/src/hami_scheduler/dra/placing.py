"""A grant for a pod's claims: the engine's choice, entered into the ledger on its way to a node.

As `placement/reserve.py` for limits. The grant begins in `binding`: it has its token, and the pod
watch finds the pod on its node, or the reaper that it never came there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping

from hamicommon import telemetry
from hamicommon.domain.allocations import Allocation, AllocationState, Origin
from hamicommon.domain.ids import NodeName
from hamicommon.domain.pod_ref import PodRef
from hamicommon.dra.requests import ClaimedSlices, claimed_slices
from hamicommon.dra.status import evidence_of, led_slices
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.ledger.model import Draft, Entry
from hamicommon.placement.engine import Decision
from opentelemetry.trace import Span, get_tracer

from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions.decision import DecisionTrace
from hami_scheduler.placement.decisions.decision_log import DecisionQueue
from hami_scheduler.placement.pod_requests import PodRequests
from hami_scheduler.placement.refusals import OverQuota
from hami_scheduler.placement.requeue import Requeuer
from hami_scheduler.placement.reserve import Reservations
from hami_scheduler.placement.waiting_pods import WaitingPod, WaitingPods
from hami_scheduler.pod_events import FILTERING_FAILED, WHY, Announcer, refusal_messages
from hami_scheduler.ports import PodApi

tracer = get_tracer(__name__)

REASON = "placed for its ResourceClaims"


class ClaimPlacing:
    """Places pods with claims, and remembers those that found no room."""

    def __init__(
        self,
        *,
        view: LedgerSnapshotCache,
        reservations: Reservations,
        requests: PodRequests,
        recorder: DecisionQueue,
        announcer: Announcer,
        instruments: SchedulerInstruments,
        pods: PodApi,
        silent: Callable[[], frozenset[NodeName]],
    ) -> None:
        """`reservations`: whose lease is how long a grant may wait for its pod."""
        self._view = view
        self._reservations = reservations
        self._requests = requests
        self._recorder = recorder
        self._announcer = announcer
        self._instruments = instruments
        self._silent = silent
        self.refused = WaitingPods()
        self._requeuer = Requeuer(
            view=view, waiting=self.refused, pods=pods, instruments=instruments
        )
        # One choice after the other, so that each sees what the ones before it took.
        self._turn = asyncio.Lock()

    async def fitting(self) -> Collection[WaitingPod]:
        """Those that were refused and fit now."""
        return await self._requeuer.fitting()

    def slices(self, pod: JsonMapping, claims: Mapping[str, Json]) -> ClaimedSlices:
        """What the pod's claims ask for.

        Raises: InvalidRequest.
        """
        if self._requests.wants_devices(pod):
            raise InvalidRequest(
                "the pod asks for cards by limits and by claims; use one of both in a pod"
            )
        return claimed_slices(pod, claims)

    async def place(
        self, pod: JsonMapping, slices: ClaimedSlices, nodes: Collection[NodeName]
    ) -> Allocation | None:
        """The pod's grant on one of the nodes; None when none has room, which the pod shows.

        Raises: InvalidRequest, Conflict, Unavailable.
        """
        # As /filter of a pod with limits: a trace of its own, which its node goes on with.
        admission = annotations_of(pod).get(TRACEPARENT, "")
        with tracer.start_as_current_span("claims", links=telemetry.link_to(admission)) as span:
            return await self._place(pod, slices, nodes, span)

    async def _place(
        self,
        pod: JsonMapping,
        slices: ClaimedSlices,
        nodes: Collection[NodeName],
        span: Span,
    ) -> Allocation | None:
        request = self._requests.for_cards(pod, slices.requests)
        silent = self._silent()
        trace = DecisionTrace(
            pod=dict(pod),
            started=time.perf_counter(),
            request=request,
            candidates=len(nodes),
            silent=tuple(sorted(set(nodes) & silent)),
        )
        if not self._view.loaded:
            await self._view.refresh()
        offered = sorted(set(nodes) - silent)
        try:
            async with self._turn:
                found = await self._reservations.best(
                    request, offered, trace, enter=lambda draft: _entry(draft, slices)
                )
        except OverQuota as exc:
            trace.refuse({}, None)
            trace.message, trace.quota = str(exc), exc.quota
            self._show(trace, {WHY: str(exc)})
        except HamiError as exc:
            trace.outcome, trace.message = "error", str(exc)
            span.set_attributes(trace.attributes())
            self._record(trace)
            raise
        else:
            if not isinstance(found, Decision):
                trace.outcome, trace.allocation = "placed", found.allocation
                trace.kept = found.decision is None
                span.set_attributes(trace.attributes())
                self._record(trace)
                self.refused.remove(request.uid)
                return found.allocation
            assert found.refusal is not None
            trace.refuse(found.refusal.reasons, found.refusal.shortfalls)
            self._show(trace, refusal_messages(trace.reasons, trace.candidates))
        span.set_attributes(trace.attributes())
        self.refused.add(
            WaitingPod(
                uid=request.uid,
                namespace=request.namespace,
                name=request.name,
                created_at=str(pod["metadata"].get("creationTimestamp", "")),
                priority=int((pod.get("spec") or {}).get("priority") or 0),
                request=request,
            )
        )
        return None

    def refuse(self, pod: JsonMapping, why: str) -> None:
        """Shows why nothing can be allocated to the pod's claims."""
        trace = DecisionTrace(pod=dict(pod), started=time.perf_counter(), outcome="error")
        trace.message = why
        self._show(trace, {"error": why})

    def _show(self, trace: DecisionTrace, messages: Mapping[str, str]) -> None:
        self._record(trace)
        ref = PodRef(trace.namespace, trace.name, trace.uid)
        for series, message in messages.items():
            self._announcer.announce(ref, FILTERING_FAILED, message, series=series)

    def _record(self, trace: DecisionTrace) -> None:
        self._instruments.decisions.labels(trace.outcome, "").inc()
        self._recorder.add(trace)


def _entry(draft: Draft, slices: ClaimedSlices) -> Entry:
    cards = {
        container.index: [share.uuid for share in container.shares]
        for container in draft.placement.containers
    }
    return Entry(
        draft=draft,
        state=AllocationState.BINDING,
        origin=Origin.CLAIM,
        reason=REASON,
        evidence={"claims": evidence_of(draft.allocation_id, slices.containers, cards)},
        claims=led_slices(draft.allocation_id, slices.containers, draft.placement.containers),
    )
