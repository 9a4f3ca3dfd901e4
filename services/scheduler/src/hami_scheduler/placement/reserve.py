"""Choosing cards and taking them: the loop of one pure choice and one transaction.

`decide` over the view chooses, `AllocationStore.reserve` takes; a card that was lost since is left
out and the choice made again, at most `MAX_REPLANS` times. A refusal counts only after the view was
found equal to the ledger. /filter (`extender/filter.py`) offers many nodes, /bind exactly one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from hamicommon.domain.allocations import Allocation, AllocationState, Placement
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_owner import PodOwner
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import (
    CapacityConflict,
    Conflict,
    HamiError,
    NotFound,
    QuotaConflict,
    Unavailable,
)
from hamicommon.k8s.pod_object import owner_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Draft, Entry
from hamicommon.placement.engine import Decision
from opentelemetry.trace import get_tracer

from hami_scheduler.ledger.quota import cards_beyond
from hami_scheduler.ledger.reservations.early import EarlyReservations
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions.ahead import DecisionsAhead
from hami_scheduler.placement.decisions.decision import DecisionTrace
from hami_scheduler.placement.decisions.decision_log import DecisionQueue
from hami_scheduler.placement.draft import draft_of, reserved_early
from hami_scheduler.placement.pod_requests import PodRequests
from hami_scheduler.placement.refusals import NoRoom, OverQuota
from hami_scheduler.ports import AllocationStore, PodApi

tracer = get_tracer(__name__)

MakeEntry = Callable[[Draft], Entry]

MAX_REPLANS = 3
# kube-scheduler waits 30 s for /filter; each step of a plan may wait 5 s for a connection.
MOST_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The pod has an allocation on one of the nodes."""

    allocation: Allocation
    decision: Decision | None
    """None: it had it before, and keeps it."""


class Reservations:
    """Reserves slices for pods."""

    def __init__(
        self,
        *,
        view: LedgerSnapshotCache,
        store: AllocationStore,
        pods: PodApi,
        requests: PodRequests,
        reservation_s: float,
        recorder: DecisionQueue,
        instruments: SchedulerInstruments,
        early: EarlyReservations,
        owner_of: Callable[[JsonMapping], PodOwner] = owner_of,
    ) -> None:
        self._view = view
        self._store = store
        self._pods = pods
        self._requests = requests
        self._reservation_s = reservation_s
        self._recorder = recorder
        self._instruments = instruments
        self._early = early
        self._owner_of = owner_of
        self._ahead = DecisionsAhead(recorder.frozen)
        self._taking: Counter[GpuUuid] = Counter()
        """Cards that reservations of this replica are taking at this moment."""

    async def best(
        self,
        request: PodRequest,
        names: Sequence[NodeName],
        trace: DecisionTrace,
        *,
        replaces: Allocation | None = None,
        early: bool = False,
        enter: MakeEntry | None = None,
    ) -> Reserved | Decision:
        """Reserves on the best of the nodes; the Decision of a refusal when none fits.

        A reservation that the pod holds already is kept if its node is offered, else replaced.
        `early`: it may still be on its way to the ledger (`EarlyReservations`). `enter`: the grant
        begins as this entry, past `reserved`.
        Raises: OverQuota, Conflict, Unavailable.
        """
        await self._early.written(request.uid)
        if early:
            await self._early.room()
        lost: set[GpuUuid] = set()
        beyond: frozenset[GpuUuid] = frozenset()
        refused: QuotaConflict | None = None
        checked = False
        for _ in range(MAX_REPLANS + 2):
            _check_in_time(trace)
            # Who lost a race keeps away from cards that others are taking at this moment: many pods
            # that want the same last slot part at once, instead of losing to each other in turn.
            busy = set(self._taking) if lost else set()
            decision = self._decide(request, names, lost | busy | beyond, trace)
            if decision.placement is None:
                if refused is not None:
                    raise OverQuota(refused, self._requests.vendors)
                if lost or not checked:
                    checked = True
                    if await self._outdated(decision, lost):
                        continue
                live = await self._store.live_of(request.uid)
                return _kept(live, names) or decision
            try:
                allocation = await self._take(
                    request, decision.placement, replaces, trace, early=early, enter=enter
                )
            except QuotaConflict as exc:
                self._instruments.replans.inc()
                # A percentage of a smaller card may still be within the quota.
                larger = cards_beyond(request, self._view.cluster, exc, self._requests.vendors)
                if larger <= beyond:
                    raise OverQuota(exc, self._requests.vendors) from exc
                beyond, refused = beyond | larger, exc
            except CapacityConflict as exc:
                self._instruments.replans.inc()
                lost.add(GpuUuid(exc.subject))
                self._view.doubt(decision.placement.node)
            except Conflict:
                replaces = await self._store.live_of(request.uid)
                if kept := _kept(replaces, names):
                    return kept
                _check_replaceable(replaces)
            else:
                return Reserved(allocation=allocation, decision=decision)
        raise Conflict(
            f"other pods took the chosen cards {MAX_REPLANS} times in a row; the pod is tried again"
        )

    async def on_node(
        self,
        namespace: str,
        name: str,
        uid: PodUid,
        node: NodeName,
        replaces: Allocation | None,
    ) -> Allocation | None:
        """Reserves on exactly that node, for a pod that comes to /bind without a reservation.

        None: it asks for no card, so there is nothing to reserve.

        Raises: NotFound, InvalidRequest, Unschedulable with the reason, Conflict, Unavailable.
        """
        pod = await self._pods.get(namespace, name)
        if pod["metadata"]["uid"] != uid:
            raise NotFound(f"pod {namespace}/{name} with uid {uid} is gone")
        trace = DecisionTrace(pod=pod, started=time.perf_counter(), candidates=1)
        request = trace.request = self._requests.of(pod)
        if not request.wants_devices:
            return None
        if not self._view.loaded:
            await self._view.refresh()
        with tracer.start_as_current_span("filter"):
            found = await self.best(request, [node], trace, replaces=replaces)
            if isinstance(found, Decision):
                assert found.refusal is not None
                trace.refuse(found.refusal.reasons, found.refusal.shortfalls)
                self._recorder.add(trace)
                raise NoRoom(node, found.refusal.reasons[node])
            trace.outcome, trace.allocation = "placed", found.allocation
            trace.message = "placed at /bind"
            self._recorder.add(trace)
        return found.allocation

    def look_ahead(self) -> None:
        """Decides for a pod like the last one, which is likely to come next; never waits."""
        self._ahead.look_ahead(self._view.cluster)

    def _decide(
        self,
        request: PodRequest,
        names: Sequence[NodeName],
        lost: set[GpuUuid],
        trace: DecisionTrace,
    ) -> Decision:
        with trace.phase("place"):
            found = self._ahead.decide(request, self._view.cluster, names, lost)
        decision, trace.frozen, trace.ahead = found
        trace.view_version, trace.scores = decision.view_version, decision.scores
        return decision

    async def _outdated(self, refusal: Decision, lost: set[GpuUuid]) -> bool:
        """True when the refusal was decided on another view than the ledger's, and does not count.

        It does not matter who refreshed the view since, only that it is another one now.
        """
        await self._early.all_written()
        await self._view.refresh()
        again = bool(lost) or self._view.cluster.version != refusal.view_version
        lost.clear()
        return again

    async def _take(
        self,
        request: PodRequest,
        placement: Placement,
        replaces: Allocation | None,
        trace: DecisionTrace,
        *,
        early: bool,
        enter: MakeEntry | None,
    ) -> Allocation:
        cards = self._view.cluster.cards(placement.node)
        draft = draft_of(
            request,
            placement,
            {state.usage.device.uuid: state for state in cards},
            self._requests.vendors,
            now=datetime.now(UTC),
            lease_s=self._reservation_s,
            replaces=replaces,
            owner=self._owner_of(trace.pod),
        )
        if early and self._early.fits(draft):
            with trace.phase("reserve"):
                before = self._view.cluster.version
                self._early.put(draft, partial(self._broken, trace))
                self._ahead.counted(placement, before=before, view=self._view.cluster)
            return reserved_early(draft, datetime.now(UTC))
        self._early.note_own(draft)
        uuids = [share.uuid for container in placement.containers for share in container.shares]
        self._taking.update(uuids)
        try:
            with (
                tracer.start_as_current_span("reserve"),
                trace.phase("reserve"),
                self._early.counted(draft),
            ):
                change = await (
                    self._store.enter(enter(draft)) if enter else self._store.reserve(draft)
                )
        finally:
            self._taking -= Counter(uuids)
        self._view.apply(change.counters)
        self._instruments.transitions.labels(change.allocation.state.value).inc()
        return change.allocation

    def _broken(self, trace: DecisionTrace, error: HamiError) -> None:
        """The decision was recorded as made; why it does not hold comes after it."""
        again = DecisionTrace(
            pod=trace.pod,
            started=time.perf_counter(),
            request=trace.request,
            candidates=trace.candidates,
            outcome="error",
            message=f"the reservation was not written: {error}",
        )
        self._recorder.add(again)


def _check_in_time(trace: DecisionTrace) -> None:
    spent_s = time.perf_counter() - trace.started
    if spent_s > MOST_S:
        raise Unavailable(
            f"the ledger was slow: {spent_s:.0f} s went by, no plan is begun after {MOST_S:g} s; "
            "the pod is tried again"
        )


def _kept(live: Allocation | None, names: Sequence[NodeName]) -> Reserved | None:
    if live is None or live.node not in names:
        return None
    return Reserved(allocation=live, decision=None)


def _check_replaceable(live: Allocation | None) -> None:
    if live is not None and live.state is not AllocationState.RESERVED:
        raise Conflict(
            f"the pod is {live.state} on node {live.node}, which is not among the nodes offered"
        )
