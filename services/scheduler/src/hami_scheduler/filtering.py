"""/filter and /prioritize: which node a pod goes to, and the reservation of its slices.

In: the extender's arguments. One pure call (`placement.place.decide`) over the view chooses, one
transaction (`AllocationStore.reserve`) takes; a card that was lost meanwhile is left out and the
choice made again. "Nothing fits" is answered only after the view was found equal to the ledger. The
story goes on in `binding.py`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opentelemetry import trace

from hami_scheduler.announcing import (
    FILTERING_FAILED,
    FILTERING_SUCCEED,
    Announcer,
    found_message,
    refusal_messages,
)
from hami_scheduler.extender import ExtenderArgs, FilterResult
from hami_scheduler.instruments import Instruments
from hami_scheduler.ports import AllocationStore, Json
from hami_scheduler.quotas import quota_amounts, quota_reason
from hami_scheduler.recording import Course, DecisionQueue
from hami_scheduler.view import LedgerView
from hami_scheduler.waiting import WaitingPods
from hamicommon import telemetry
from hamicommon.db.ledger import Draft
from hamicommon.domain.allocations import Allocation, AllocationState, Placement
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.errors import CapacityConflict, Conflict, HamiError, InvalidRequest
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of
from hamicommon.k8s.resources import pod_request
from hamicommon.placement.place import Decision, decide, feasible, prioritize
from hamicommon.placement.view import CardState, ClusterView
from hamicommon.vendors.registry import Vendors

logger = logging.getLogger(__name__)
tracer = trace.get_tracer(__name__)

MAX_REPLANS = 3
ACTOR = "scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """What the settings say about choosing."""

    defaults: Policy
    reserve: bool
    """False: /filter answers every node that fits, and the grant is made at /bind."""
    reservation_s: float


class Filtering:
    """The use cases of /filter and /prioritize."""

    def __init__(
        self,
        *,
        view: LedgerView,
        store: AllocationStore,
        vendors: Vendors,
        rules: FilterRules,
        announcer: Announcer,
        recorder: DecisionQueue,
        waiting: WaitingPods,
        instruments: Instruments,
    ) -> None:
        self._view = view
        self._store = store
        self._vendors = vendors
        self._rules = rules
        self._announcer = announcer
        self._recorder = recorder
        self._waiting = waiting
        self._instruments = instruments

    async def filter(self, args: ExtenderArgs) -> FilterResult:
        """Answers /filter; what went wrong is in the result."""
        started = time.perf_counter()
        admission = annotations_of(args.pod).get(TRACEPARENT, "")
        with tracer.start_as_current_span("filter", links=telemetry.link_to(admission)) as span:
            course = Course(pod=args.pod, started=started)
            try:
                result = await self._filter(args, course)
            except HamiError as exc:
                result = self._failed(args.pod, course, exc)
            for name, value in course.attributes().items():
                span.set_attribute(name, value)
            self._recorder.add(course)
        outcome = course.outcome or "unmanaged"
        self._instruments.filter_seconds.labels(outcome).observe(time.perf_counter() - started)
        return result

    async def prioritize(self, args: ExtenderArgs) -> dict[str, int]:
        """Answers /prioritize: 0..10 per node. Raises: InvalidRequest."""
        request = pod_request(args.pod, self._vendors, self._rules.defaults)
        names = [NodeName(name) for name in args.node_names or ()]
        if not request.wants_devices:
            return dict.fromkeys(names, 0)
        return dict(prioritize(request, self._view.cluster, names))

    async def _filter(self, args: ExtenderArgs, course: Course) -> FilterResult:
        request = pod_request(args.pod, self._vendors, self._rules.defaults)
        if not request.wants_devices:
            return FilterResult(node_names=args.node_names, nodes=args.nodes)
        if args.nodes is not None:
            return self._simulate(request, args.nodes)
        names = [NodeName(name) for name in args.node_names or ()]
        course.request, course.candidates = request, len(names)
        self._waiting.saw(args.pod, request)
        if not self._view.loaded:
            await self._view.refresh()
        if not self._rules.reserve:
            return await self._answer_feasible(request, names, course)
        return await self._reserve_best(request, names, course)

    async def _reserve_best(
        self, request: PodRequest, names: Sequence[NodeName], course: Course
    ) -> FilterResult:
        lost: set[GpuUuid] = set()
        replaces: Allocation | None = None
        confirmed = False
        for _ in range(MAX_REPLANS + 2):
            decision = self._decide(request, names, lost, course)
            if decision.placement is None:
                if not confirmed:
                    confirmed = True
                    if await self._confirm_refusal(lost):
                        continue
                    replaces = replaces or await self._store.live_of(request.uid)
                    if replaces is not None and replaces.node in names:
                        return self._kept(replaces, course)
                return self._refused(request, names, decision, course)
            try:
                allocation = await self._reserve(request, decision.placement, replaces, course)
            except CapacityConflict as exc:
                self._instruments.replans.inc()
                if exc.subject.startswith("quota/"):
                    return self._over_quota(request, names, exc, course)
                lost.add(GpuUuid(exc.subject))
                self._view.doubt(decision.placement.node)
            except Conflict:
                replaces = await self._store.live_of(request.uid)
                if replaces is not None and replaces.node in names:
                    return self._kept(replaces, course)
                _check_replaceable(replaces)
            else:
                return self._placed(allocation, decision, course)
        raise Conflict(
            f"other pods took the chosen cards {MAX_REPLANS} times in a row; the pod is tried again"
        )

    def _decide(
        self,
        request: PodRequest,
        names: Sequence[NodeName],
        lost: set[GpuUuid],
        course: Course,
    ) -> Decision:
        with tracer.start_as_current_span("place"), course.phase("place"):
            decision = decide(request, self._view.cluster, candidates=names, without_cards=lost)
        course.view_version = decision.view_version
        return decision

    async def _confirm_refusal(self, lost: set[GpuUuid]) -> bool:
        """True when the view was not the ledger's, so that the choice must be made again."""
        changed = await self._view.refresh()
        again = changed or bool(lost)
        lost.clear()
        return again

    async def _reserve(
        self,
        request: PodRequest,
        placement: Placement,
        replaces: Allocation | None,
        course: Course,
    ) -> Allocation:
        draft = Draft(
            allocation_id=AllocationId(str(uuid.uuid4())),
            pod_uid=request.uid,
            namespace=request.namespace,
            pod_name=request.name,
            placement=placement,
            lease_s=self._rules.reservation_s,
            mutex="mutex" in request.policy.gpu,
            quota=quota_amounts(placement.containers, self._vendors),
            policy={"node": request.policy.node, "gpu": list(request.policy.gpu)},
            traceparent=telemetry.traceparent(),
            replaces=None if replaces is None else replaces.id,
            actor=ACTOR,
        )
        with tracer.start_as_current_span("reserve"), course.phase("reserve"):
            change = await self._store.reserve(draft)
        self._view.apply(change.counters)
        self._instruments.transitions.labels(AllocationState.RESERVED.value).inc()
        return change.allocation

    def _placed(self, allocation: Allocation, decision: Decision, course: Course) -> FilterResult:
        course.outcome, course.allocation = "placed", allocation
        message = found_message(allocation.node, decision.scores, course.candidates)
        self._say(course, FILTERING_SUCCEED, message, warning=False)
        return FilterResult(node_names=[allocation.node])

    def _kept(self, allocation: Allocation, course: Course) -> FilterResult:
        course.outcome, course.allocation = "placed", allocation
        course.message = f"kept what attempt {allocation.attempt} holds ({allocation.state})"
        return FilterResult(node_names=[allocation.node])

    def _refused(
        self,
        request: PodRequest,
        names: Sequence[NodeName],
        decision: Decision,
        course: Course,
    ) -> FilterResult:
        refusal = decision.refusal
        assert refusal is not None
        course.refuse(refusal.reasons, refusal.shortfalls)
        for message in refusal_messages(refusal.reasons, len(names)):
            self._say(course, FILTERING_FAILED, message)
        final = refusal.unresolvable
        return FilterResult(
            failed={n: why for n, why in refusal.reasons.items() if n not in final},
            unresolvable={n: why for n, why in refusal.reasons.items() if n in final},
        )

    def _over_quota(
        self,
        request: PodRequest,
        names: Sequence[NodeName],
        error: CapacityConflict,
        course: Course,
    ) -> FilterResult:
        reasons = {name: quota_reason(len(self._view.cluster.cards(name))) for name in names}
        course.refuse(reasons, None)
        course.message = str(error)
        self._say(course, FILTERING_FAILED, str(error))
        for message in refusal_messages(reasons, len(names)):
            self._say(course, FILTERING_FAILED, message)
        return FilterResult(failed={}, unresolvable=reasons)

    async def _answer_feasible(
        self, request: PodRequest, names: Sequence[NodeName], course: Course
    ) -> FilterResult:
        """`allocate_at=bind`: every node that fits; kube-scheduler and /prioritize choose."""
        found = feasible(request, self._view.cluster, names)
        if not found.placements and await self._view.refresh():
            found = feasible(request, self._view.cluster, names)
        if not found.placements:
            decision = decide(request, self._view.cluster, candidates=names)
            return self._refused(request, names, decision, course)
        course.outcome = "placed"
        course.message = f"{len(found.placements)} of {len(names)} nodes fit"
        reasons, final = found.refusal.reasons, found.refusal.unresolvable
        return FilterResult(
            node_names=list(found.placements),
            failed={n: why for n, why in reasons.items() if n not in final},
            unresolvable={n: why for n, why in reasons.items() if n in final},
        )

    def _simulate(self, request: PodRequest, nodes: Sequence[Json]) -> FilterResult:
        """A dry run over Node objects with nothing granted on them (Cluster Autoscaler)."""
        view = ClusterView()
        objects = {NodeName(node["metadata"]["name"]): node for node in nodes}
        for name, node in objects.items():
            if cards := _cards_told_by(node, self._vendors):
                view.set_node(name, cards)
        decision = decide(request, view, candidates=list(objects))
        if decision.placement is not None:
            return FilterResult(nodes=[objects[decision.placement.node]])
        assert decision.refusal is not None
        return FilterResult(failed=decision.refusal.reasons)

    def _failed(self, pod: Json, course: Course, error: HamiError) -> FilterResult:
        metadata = pod.get("metadata") or {}
        course.outcome, course.message = "error", str(error)
        course.error = True
        text = str(error)
        if isinstance(error, InvalidRequest):
            text = f"calcScore failed {error} for pod {metadata.get('name', '')}"
        self._say(course, FILTERING_FAILED, text)
        return FilterResult(error=str(error))

    def _say(self, course: Course, reason: str, message: str, *, warning: bool = True) -> None:
        if course.uid:
            self._announcer.say(
                reason,
                message,
                namespace=course.namespace,
                name=course.name,
                uid=course.uid,
                warning=warning,
            )


def _check_replaceable(live: Allocation | None) -> None:
    if live is not None and live.state is not AllocationState.RESERVED:
        raise Conflict(
            f"the pod is {live.state} on node {live.node}, which is not among the nodes offered"
        )


def _cards_told_by(node: Json, vendors: Vendors) -> list[CardState]:
    cards: list[CardState] = []
    for vendor in vendors:
        try:
            devices = vendor.node_devices(node)
        except InvalidRequest as exc:
            logger.info("node annotation not readable", extra={"error": str(exc)})
            continue
        cards.extend(CardState(DeviceUsage(device=device), 1) for device in devices)
    return cards
