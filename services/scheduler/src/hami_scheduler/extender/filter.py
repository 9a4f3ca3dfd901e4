"""Implement /filter, which chooses a pod's node, and the scores for pods without cards.

Input: the extender's arguments. `placement/placer.py` chooses and assumes; this module reads the
pod, and makes the answer, the events and the record. It writes nothing and waits for nothing.
`bind.py` has the next step.

`simulate_filter` answers /filter-simulation, in the process of the simulations: which of the given
Node objects could take a pod if nothing were granted. An autoscaler whose simulation calls
extenders may send nodes that do not exist; the cards are those of the nodes' annotations, all free.
Nothing is reserved, recorded or announced, and any replica answers.

`HostScoring` scores nodes for pods without cards, which kube-scheduler places itself. A second
entry among its extenders is called for every pod. The part of each node's cards that the pod's CPU
would strand is answered as 0 to 10, and kube-scheduler adds it to its own scores.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hamicommon import telemetry
from hamicommon.admission.tampering.findings import Finding, in_short, refusal
from hamicommon.admission.tampering.guard import Guard
from hamicommon.clipping import clip
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import Conflict, HamiError, InvalidRequest, Unavailable
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of
from hamicommon.k8s.pod_groups import PodGroup, group_of, own_quorum
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_node, check_pod
from hamicommon.ledger.model import Draft
from hamicommon.placement import rules
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import feasible
from hamicommon.placement.host_scores import host_scores
from hamicommon.placement.unschedulable import Refusal
from hamicommon.vendors.pod_request import PodRequests, host_request, pod_request
from hamicommon.vendors.registry import Vendors
from opentelemetry.trace import Span, SpanContext, get_tracer, use_span

from hami_scheduler import pod_events
from hami_scheduler.extender.protocol import (
    ExtenderArgs,
    FilterResult,
    names_of,
    parse_extender_args,
)
from hami_scheduler.ledger.bookings import Bookings
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.quota import quota_reasons
from hami_scheduler.ledger.rooms import Rooms
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions import (
    MAX_MESSAGE_LENGTH,
    DecisionQueue,
    DecisionTrace,
    reason_counts,
)
from hami_scheduler.placement.expected_nodes import ExpectedNodes
from hami_scheduler.placement.groups import GroupPlans, GroupVerdict
from hami_scheduler.placement.placer import OverQuota, Placer, assumed_allocation
from hami_scheduler.placement.waiting_pods import Demand
from hami_scheduler.ports.ledger import HeldRoom

logger = logging.getLogger(__name__)

tracer = get_tracer(__name__)


@dataclass(eq=False, kw_only=True)
class Filter:
    """Use case of /filter; without `groups` each pod is placed separately.

    `guard` repeats the checks of admission; `silent`: nodes whose agents no longer report
    (`bus/heartbeats.py`); `rooms`: cards that are held for waiting pods; `bookings`: cards that are
    kept for pods of admitted workloads.
    """

    state: ClusterState
    rooms: Rooms
    bookings: Bookings
    placer: Placer
    groups: GroupPlans | None
    requests: PodRequests
    guard: Guard
    demand: Demand
    recorder: DecisionQueue
    outcomes: pod_events.Outcomes
    silent: Callable[[], frozenset[NodeName]]
    expected: ExpectedNodes = field(default_factory=ExpectedNodes)

    async def filter(
        self, args: ExtenderArgs, *, received: float
    ) -> tuple[bytes, Callable[[], None]]:
        """Return the response to /filter, with the error if there is one, and its record.

        The record is called when the answer has left. `received`: `time.perf_counter` when the call
        came, for the record and the histogram.
        """
        trace = DecisionTrace(pod=args.pod, started=received)
        admission = annotations_of(args.pod).get(TRACEPARENT, "")
        span = tracer.start_span("filter", links=telemetry.link_to(admission))
        try:
            with use_span(span):
                try:
                    result = self._filter(args, trace)
                except HamiError as exc:
                    result = self._fail(trace, exc)
                body = result.to_json()
        except BaseException:  # whatever it is, its span ends with it
            span.end()
            raise
        trace.mark_answered()
        return body, partial(self._record, trace, span, time.time_ns())

    def _record(self, trace: DecisionTrace, span: Span, answered_ns: int) -> None:
        """Record the decision, end its span, and measure it."""
        self.recorder.add(trace, span.get_span_context())
        span.set_attributes(trace.attributes())
        span.end(answered_ns)
        self._measure(trace, trace.phase_ms["total"] / 1000, span.get_span_context())

    def _measure(self, trace: DecisionTrace, spent_s: float, span: SpanContext) -> None:
        """Measure a decision by phase, with an exemplar if its trace is kept."""
        instruments = self.outcomes.instruments
        if not trace.outcome:
            instruments.decisions.labels("unmanaged", "").inc()
            return
        reason = ""
        if trace.outcome == "refused" and trace.reasons:
            counts = reason_counts(trace.reasons)
            # Of equal ones the first by name, as the ledger's questions order them.
            reason = rules.reason_label(min(counts, key=lambda each: (-counts[each], each)))
        instruments.decisions.labels(trace.outcome, reason).inc()
        for phase, spent_ms in trace.phase_ms.items():
            if phase != "total":
                instruments.decision_seconds.labels(phase).observe(spent_ms / 1000)
        instruments.decision_seconds.labels("total").observe(spent_s, exemplar_of(span))

    def _filter(self, args: ExtenderArgs, trace: DecisionTrace) -> FilterResult:
        request = self.requests.of(args.pod)
        trace.lap("parse")
        if not request.wants_devices:
            return FilterResult(node_names=args.node_names, nodes=args.nodes)
        if args.nodes is not None:
            raise InvalidRequest(
                "expected names of nodes (nodeCacheCapable: true); /filter-simulation takes whole "
                "Node objects"
            )
        undoing = self.guard.at_filter(args.pod)
        if not request.uid:
            raise InvalidRequest("the pod has no metadata.uid")
        names = self.expected.without(args.node_names or ())
        trace.request, trace.candidates = request, len(names)
        if undoing:
            return self._undoes_slices(undoing, names, trace)
        self.demand.on_filter(args.pod, request)
        if not self.state.loaded:
            raise Unavailable("the ledger has not been read yet; the pod will be retried")
        silent = self.silent()
        offered: Sequence[NodeName] = names
        if silent:
            trace.silent = tuple(name for name in names if name in silent)
            offered = [name for name in names if name not in silent]
        bound_to = self.state.binding_node(request.uid)
        if bound_to is not None:
            return self._keep(bound_to, names, trace)
        room = self.rooms.of(request.uid)
        if room is not None:
            return self._in_room(room, names, trace)
        group = None if self.groups is None else group_of(args.pod)
        if group is not None and self.groups is not None:
            trace.group_size = self.groups.members.quorum(group) or own_quorum(args.pod)
            trace.group_key = None if trace.group_size is None else f"group/{group.key}"
            with trace.phase("place"), self.bookings.left_out(args.pod):
                decided = self.groups.place(group, args.pod, offered)
            if isinstance(decided, Draft):
                self.bookings.take_all(args.pod)
                return self._accept(decided, trace)
            if decided is not None:
                return self._group_waits(group, decided, names, trace)
        self.bookings.take(args.pod, request, offered)
        try:
            found = self.placer.place(request, offered, trace)
        except OverQuota as exc:
            return self._over_quota(names, exc, trace)
        if isinstance(found, Draft):
            return self._accept(found, trace)
        assert found.refusal is not None
        self.demand.waiting.note_refusal(request.uid, offered)
        return self._refuse(found.refusal, trace)

    def _accept(self, draft: Draft, trace: DecisionTrace) -> FilterResult:
        allocation = trace.allocation = assumed_allocation(draft, datetime.now(UTC))
        trace.outcome = "placed"
        if self.outcomes.marks.shows_success(allocation):
            message = pod_events.found_message(allocation.node, trace.scores, trace.candidates)
            self._announce(trace, pod_events.FILTERING_SUCCEED, message, warning=False)
        return FilterResult(node_names=[allocation.node])

    def _keep(
        self, node: NodeName, names: Sequence[NodeName], trace: DecisionTrace
    ) -> FilterResult:
        """Return the answer for a pod whose grant is already in the ledger.

        An earlier /bind of it has no known outcome.
        """
        if node not in names:
            raise Conflict(
                f"the pod is being bound to node {node}, which is not among the offered nodes"
            )
        trace.outcome, trace.kept = "placed", True
        trace.message = f"kept the grant on {node}"
        return FilterResult(node_names=[node])

    def _in_room(
        self, room: HeldRoom, names: Sequence[NodeName], trace: DecisionTrace
    ) -> FilterResult:
        """Return the answer for a pod with a room: its node, once the victims are gone.

        /bind makes the room its grant.
        """
        if room.is_ready and room.node in names and room.node not in self.silent():
            answer = self._keep(room.node, names, trace)
            trace.message = f"uses the cards reserved on {room.node}"
            return answer
        left = [f"{each.namespace}/{each.pod_name}" for each in room.victims if not each.is_gone]
        trace.refuse(dict.fromkeys(names, rules.ROOM_HELD), None)
        why = f"reserved until these pods are gone: {', '.join(left)}" if left else "free now"
        trace.message = clip(f"cards on {room.node} are {why}", MAX_MESSAGE_LENGTH)
        return FilterResult(
            refused={name: rules.ROOM_HELD for name in names if name != room.node},
            awaited={room.node: rules.ROOM_HELD} if room.node in names else {},
        )

    def _group_waits(
        self,
        group: PodGroup,
        verdict: GroupVerdict,
        names: Sequence[NodeName],
        trace: DecisionTrace,
    ) -> FilterResult:
        """Refuse a member of a group that does not start now; each verdict is recorded once."""
        reasons = dict.fromkeys(names, rules.GROUP_WAITING)
        trace.refuse(reasons, None)
        trace.message = clip(f"group {group.key}: {verdict.sentence}", MAX_MESSAGE_LENGTH)
        if not verdict.recorded:
            self._announce(trace, rules.GROUP_WAITING, trace.message, series="group")
        trace.is_recorded = trace.uid not in verdict.recorded
        verdict.recorded.add(trace.uid)
        return FilterResult(refused=reasons)

    def _refuse(self, refusal: Refusal, trace: DecisionTrace) -> FilterResult:
        reasons = {**refusal.reasons, **dict.fromkeys(trace.silent, rules.AGENT_SILENT)}
        trace.refuse(reasons, refusal.shortfalls)
        self._announce_refusal(trace)
        return FilterResult(refused=reasons)

    def _over_quota(
        self, names: Sequence[NodeName], error: OverQuota, trace: DecisionTrace
    ) -> FilterResult:
        assert trace.request is not None
        reasons = quota_reasons(
            trace.request, self.state.cluster, names, error.quota.resource, self.requests.vendors
        )
        trace.refuse(reasons, None)
        trace.message, trace.quota = str(error), error.quota
        self._announce_refusal(trace)
        return FilterResult(refused=reasons)

    def _undoes_slices(
        self, found: Sequence[Finding], names: Sequence[NodeName], trace: DecisionTrace
    ) -> FilterResult:
        """Refuse a pod that would bypass its limits, and that bypassed the webhook."""
        result = pod_refused(found, names)
        trace.refuse(result.refused or {}, None)
        trace.message = clip(refusal(found), MAX_MESSAGE_LENGTH)
        return result

    def _fail(self, trace: DecisionTrace, error: HamiError) -> FilterResult:
        why = clip(str(error), MAX_MESSAGE_LENGTH)
        trace.outcome, trace.message = "error", why
        text = why
        if isinstance(error, InvalidRequest):
            text = f"calcScore failed {why} for pod {clip(trace.name)}"
        # One event with the latest text: the author may change the error at each attempt.
        self._announce(trace, pod_events.FILTERING_FAILED, text, series="error")
        left_out = self.outcomes.log_limit.take(trace.uid, why)
        if left_out is not None:
            extra = {"pod_uid": trace.uid, "error": why, "left_out": left_out}
            logger.warning("Failed to filter nodes", extra=extra)
        return FilterResult(error=why)

    def _announce_refusal(self, trace: DecisionTrace) -> None:
        for series, message in pod_events.refusal_messages(trace.reasons, trace.candidates).items():
            self._announce(trace, pod_events.FILTERING_FAILED, message, series=series)

    def _announce(self, trace: DecisionTrace, reason: str, message: str, **more: Any) -> None:
        if trace.uid:
            self.outcomes.announcer.announce(trace.pod_ref, reason, message, **more)


def exemplar_of(span: SpanContext) -> dict[str, str] | None:
    """Return the decision's trace id; None if it is not sampled."""
    if not (span.is_valid and span.trace_flags.sampled):
        return None
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


def pod_refused(found: Sequence[Finding], names: Sequence[NodeName]) -> FilterResult:
    """Return the answer for a pod that would bypass its limits."""
    return FilterResult(refused=dict.fromkeys(names, f"{rules.POD_REFUSED}: {in_short(found)}"))


def simulate_filter(body: bytes, vendors: Vendors, guard: Guard, defaults: Policy) -> FilterResult:
    """Return all nodes that fit, and the reasons of the others. Raises: InvalidRequest."""
    args = parse_extender_args(body)
    if args.nodes is None:
        raise InvalidRequest("expected Node objects in Nodes.items; /filter takes names of nodes")
    if not all(isinstance(node, dict) for node in args.nodes):
        raise InvalidRequest("extender args: Nodes.items must be a list of objects")
    check_pod(args.pod)
    for number, node in enumerate(args.nodes):
        check_node(node, f"node {number}")
    request = pod_request(args.pod, vendors, defaults)
    if not request.wants_devices:
        return FilterResult(nodes=args.nodes)
    names = names_of(args.nodes)
    if undoing := guard.at_filter(args.pod):
        return pod_refused(undoing, names)
    view = ClusterView(vendors.rules)
    for name, node in zip(names, args.nodes, strict=True):
        if cards := _annotated_cards(node, vendors):
            view.set_node(name, cards)
    found = feasible(request, view, names)
    fitting = [
        node for name, node in zip(names, args.nodes, strict=True) if name in found.placements
    ]
    return FilterResult(nodes=fitting, refused=found.refusal.reasons)


def _annotated_cards(node: Json, vendors: Vendors) -> Sequence[CardState]:
    cards: list[CardState] = []
    for vendor in vendors:
        try:
            devices = vendor.node_devices(node)
        except InvalidRequest as exc:
            logger.info("Failed to read a node annotation", extra={"error": str(exc)})
            continue
        cards.extend(CardState(DeviceUsage(device=device), 1) for device in devices)
    return cards


@dataclass(frozen=True, kw_only=True)
class HostScoring:
    """Use case of /prioritize-without-cards."""

    cluster: ClusterView
    requests: PodRequests
    instruments: SchedulerInstruments

    def scores(self, args: ExtenderArgs) -> dict[NodeName, int]:
        """Return 0..10 per node; equal scores for a pod with cards, which those decide."""
        began = time.perf_counter()
        names = (args.node_names or ()) if args.nodes is None else names_of(args.nodes)
        with tracer.start_as_current_span("score-hosts") as span:
            if self._asks_for_cards(args.pod):
                outcome, found = "neutral", dict.fromkeys(names, 0)
            else:
                cpu_milli = host_request(args.pod).cpu_milli
                outcome, found = "scored", host_scores(cpu_milli, self.cluster, names)
            span.set_attributes({**_about(args.pod), "hami.candidates": len(names)})
            span.set_attribute("hami.outcome", outcome)
        self.instruments.host_score_seconds.labels(outcome).observe(time.perf_counter() - began)
        logger.debug("Scored hosts", extra={"outcome": outcome, "nodes": len(names)})
        return found

    def _asks_for_cards(self, pod: Json) -> bool:
        """Return whether the pod asks for cards by limits, or has any ResourceClaim."""
        claims = (pod.get("spec") or {}).get("resourceClaims")
        return bool(claims) or self.requests.wants_devices(pod)


def _about(pod: Json) -> dict[str, str]:
    metadata = pod.get("metadata") or {}
    namespace, name, uid = (str(metadata.get(key, "")) for key in ("namespace", "name", "uid"))
    return telemetry.pod_attributes(clip(namespace), clip(name), uid)
