"""Controller of Kueue's AdmissionCheck: do a workload's pods fit as slices now?

On with `HAMI_SCHEDULER_KUEUE=on`.

Kueue asks after a workload has its quota: an entry of our check in its status, in state Pending.
All pods are placed beside each other on the cards in memory. If they fit, the answer is Ready, and
the cards are kept for the pods to come (`ledger/bookings.py`); if not, the workload stays Pending
with the reason and is judged again when capacity was freed. One that waited for long gives way for
a while (Retry); one that no cards of the cluster could ever take is Rejected. Only the active
replica answers, one workload after the other, so two are never promised one card.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cachetools import LRUCache, TTLCache
from hamicommon.admission.idle_cards import IdleCards
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.errors import Conflict, HamiError, InvalidRequest, NotFound
from hamicommon.explain.groups import group_sentence
from hamicommon.explain.sentences import quota_sentence, stock_of
from hamicommon.k8s.annotations import KUEUE_WORKLOAD
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.kueue import API, CONTROLLER
from hamicommon.kueue.workloads import (
    PodSet,
    Verdict,
    check_state,
    nodes_for,
    pod_counts,
    pod_sets,
    quota_held_since,
    with_verdict,
)
from hamicommon.ledger.model import Draft
from hamicommon.placement.groups import decide_group

from hami_scheduler.ledger.bookings import Bookings
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.quota import quota_short
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.closed_nodes import ClosedNodes
from hami_scheduler.placement.decisions import DecisionTrace, group_trace
from hami_scheduler.placement.placer import draft_of

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 10.0
"""Interval of checking waiting workloads again although no capacity was freed."""
REWRITE_S = 10.0
"""Minimum time before a message is rewritten; a state is written immediately."""
REQUEUE_S = 60.0
"""Time for which an evicted workload stays out of its queue."""
MAX_REMEMBERED = 10_000


@dataclass(eq=False, kw_only=True)
class SliceCheck:
    """Watches Kueue's objects, and answers the admission check."""

    api: KubeApi
    state: ClusterState
    is_ready: Callable[[], bool]
    """Return whether ledger, pods and nodes are known."""
    bookings: Bookings
    rules: AdmissionRules
    defaults: Policy
    nodes: Callable[[], Iterable[JsonMapping]]
    """Return the nodes of the node watch."""
    closed: ClosedNodes
    workloads: Callable[[], Iterable[Json]]
    checks: Callable[[], Iterable[Json]]
    flavors: Callable[[], Iterable[Json]]
    instruments: SchedulerInstruments
    record: Callable[[DecisionTrace], None]
    give_way_s: float
    booking_s: float
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _written: TTLCache[str, None] = field(init=False)
    """Workloads whose message was written recently."""

    _waits: TTLCache[str, int] = field(init=False)
    """Workloads that did not fit recently, with the counts of changes to cards and quotas then."""
    _answered: LRUCache[str, str] = field(init=False)
    """Version of each workload that the last answer replaced.

    The workload is not checked again until the watch shows a newer version.
    """
    _judged: LRUCache[str, None] = field(init=False)
    """Workloads that fit on idle cards; they are not checked again."""

    def __post_init__(self) -> None:
        self._written = TTLCache(MAX_REMEMBERED, REWRITE_S)
        self._waits = TTLCache(MAX_REMEMBERED, LOOK_INTERVAL_S)
        self._answered = LRUCache(MAX_REMEMBERED)
        self._judged = LRUCache(MAX_REMEMBERED)

    def wake(self) -> None:
        """Check the workloads soon, because capacity or objects changed."""
        self._woken.set()

    async def run(self) -> None:
        """Answer the admission checks until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._woken.wait()
            self._woken.clear()
            with self.instruments.bulkhead.item("kueue", "round"):
                await self.once()

    async def once(self) -> None:
        """Answer every waiting workload now, by priority and age."""
        if not self.is_ready():
            return
        ours = [each for each in self.checks() if each["spec"]["controllerName"] == CONTROLLER]
        for check in ours:
            await self._activate(check)
        names = [check["metadata"]["name"] for check in ours]
        holding = [each for each in self.workloads() if quota_held_since(each) is not None]
        self.bookings.keep({each["metadata"]["uid"] for each in holding})
        self.instruments.kueue_booked.set(len(self.bookings))
        asking = [
            (workload, state)
            for workload in holding
            if (state := check_state(workload, names))
            and state["state"] == "Pending"
            and self._answered.get(workload["metadata"]["uid"]) != _version(workload)
        ]
        for workload, state in sorted(asking, key=lambda each: _place(each[0])):
            if self._waits.get(workload["metadata"]["uid"]) == self.state.changes:
                continue  # nothing was freed since
            with self.instruments.bulkhead.item("kueue", workload["metadata"]["name"]):
                try:
                    await self._answer(workload, state)
                except (Conflict, NotFound):
                    pass  # it has changed, or is gone: the watch brings it
                except HamiError as exc:
                    extra = {"workload": _name(workload), "error": clip(str(exc))}
                    logger.warning("Failed to answer an admission check, retrying", extra=extra)
            await asyncio.sleep(0)  # requests have their turn

    async def _activate(self, check: Json) -> None:
        """Set the AdmissionCheck's `Active` condition.

        Kueue stops queues whose check is inactive.
        """
        conditions = (check.get("status") or {}).get("conditions") or []
        if any(each["type"] == "Active" and each["status"] == "True" for each in conditions):
            return
        active = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "hami-scheduler answers",
            "observedGeneration": check["metadata"].get("generation", 0),
            "lastTransitionTime": self.clock().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        others = [each for each in conditions if each["type"] != "Active"]
        name = check["metadata"]["name"]
        body = {"status": {"conditions": [*others, active]}}
        try:
            await self.api.patch(f"{API}/admissionchecks/{name}/status", body)
        except HamiError as exc:
            extra = {"check": name, "error": clip(str(exc))}
            logger.warning("Failed to activate an admission check, retrying", extra=extra)

    async def _answer(self, workload: Json, state: Json) -> None:
        began = time.perf_counter()
        uid = workload["metadata"]["uid"]
        verdict = self.judge(workload)
        self.instruments.kueue_check_seconds.observe(time.perf_counter() - began)
        if verdict.state == "Pending" and verdict.message == state["message"]:
            self._waits[uid] = self.state.changes
        if verdict.state == "Pending" and (
            verdict.message == state["message"] or (uid in self._written and state["message"])
        ):
            return
        body = with_verdict(
            workload,
            state["name"],
            verdict,
            now=self.clock(),
            requeue_s=REQUEUE_S,
            annotation=KUEUE_WORKLOAD,
        )
        metadata = workload["metadata"]
        path = f"{API}/namespaces/{metadata['namespace']}/workloads/{metadata['name']}/status"
        try:
            await self.api.patch(path, body)
        except (Conflict, NotFound):
            # After another error it may be written: the booking stays until its deadline.
            if self.bookings.drop(uid):
                self.state.notify_freed()
            raise
        self._answered[uid] = _version(workload)
        self._written[uid] = None
        self.instruments.kueue_checks.labels(verdict.state).inc()
        self.record(
            group_trace(
                *("workload", metadata["namespace"], metadata["name"]),
                size=sum(pod_counts(workload).values()),
                is_placed=verdict.state == "Ready",
                message=f"{verdict.state}: {verdict.message}",
            )
        )
        extra = {"workload": _name(workload), "state": verdict.state, "reason": verdict.message}
        logger.info("Answered an admission check", extra=extra)

    def judge(self, workload: JsonMapping) -> Verdict:
        """Return the answer to a workload; if its pods fit, their cards are reserved (booked)."""
        self.bookings.drop(workload["metadata"]["uid"])
        try:
            sets = pod_sets(workload, self.rules, self.defaults)
        except InvalidRequest as exc:
            return Verdict(state="Rejected", message=clip(str(exc), 1024))
        if not sets:
            return Verdict(state="Ready", message="asks for no card")
        problem, placed = self._place_all(sets)
        if problem:
            return self._refuse(workload, sets, problem)
        if self.booking_s:
            self.bookings.book(workload["metadata"]["uid"], *zip(*placed, strict=True))
        else:
            self.state.lift(draft.pod_uid for _, draft in placed)
        nodes = Counter(draft.placement.node for _, draft in placed)
        where = ", ".join(f"{node} ({number})" for node, number in sorted(nodes.items()))
        total = len(placed)
        return Verdict(
            state="Ready",
            message=clip(f"{total} of {total} pods fit: {where}", 1024),
            booked=bool(self.booking_s),
        )

    def _place_all(self, sets: Iterable[PodSet]) -> tuple[str, list[tuple[PodRequest, Draft]]]:
        """Assume a placement for each pod, or for none, with the reason."""
        placed: list[tuple[PodRequest, Draft]] = []
        for pods in sets:
            problem = self._place_set(pods, placed)
            if problem:
                self.state.lift(draft.pod_uid for _, draft in placed)
                return problem, []
        return "", placed

    def _place_set(self, pods: PodSet, placed: list[tuple[PodRequest, Draft]]) -> str:
        view = self.state.cluster
        offered = self._nodes_for(pods)
        found = decide_group(pods.members, view, needed=len(pods.members), offered=sorted(offered))
        if not found.fits:
            devices = [card.usage.device for node in view.nodes for card in view.cards(node)]
            return group_sentence(found, stock_of(devices), candidates=len(offered))
        for request in found.members:
            placement, vendors = found.placements[request.uid], self.rules.vendors
            draft = draft_of(request, placement, view, vendors, lease_s=self.booking_s)
            conflict = self.state.quotas.conflict(draft.namespace, draft.quota)
            if conflict is not None:
                return quota_sentence(quota_short(conflict, self.rules.vendors))
            self.state.assume(draft, ttl_s=self.booking_s)
            placed.append((request, draft))
        return ""

    def _nodes_for(self, pods: PodSet) -> frozenset[NodeName]:
        labels: Mapping[str, str] = {
            key: value
            for flavor in self.flavors()
            if flavor["metadata"]["name"] in pods.flavors
            for key, value in ((flavor.get("spec") or {}).get("nodeLabels") or {}).items()
        }
        closed = frozenset[NodeName]().union(*self.closed.by_reason().values())
        return nodes_for(pods, self.nodes(), labels).intersection(self.state.cluster.nodes) - closed

    def _refuse(self, workload: JsonMapping, sets: Iterable[PodSet], problem: str) -> Verdict:
        never = self._never_fits(workload["metadata"]["uid"], sets)
        if never:
            return Verdict(state="Rejected", message=clip(never, 1024))
        since = quota_held_since(workload)
        if since is not None and (self.clock() - since).total_seconds() >= self.give_way_s:
            problem = f"gives way for {REQUEUE_S:g} s after {self.give_way_s:g} s: {problem}"
            return Verdict(state="Retry", message=clip(problem, 1024))
        return Verdict(state="Pending", message=clip(problem, 1024))

    def _never_fits(self, uid: str, sets: Iterable[PodSet]) -> str:
        """Return why no node could fit the pods even if all cards were free."""
        if uid in self._judged:
            return ""
        idle = IdleCards(self.rules.vendors)
        for node in self.state.cluster.nodes:
            idle.set_node(node, [card.usage.device for card in self.state.cluster.cards(node)])
        for pods in sets:
            request = pods.members[0]
            # Of a vendor without a card, a node may come.
            if not idle.vendors_without_cards(request) and (
                never := idle.never_fits_reason(request)
            ):
                return f"pod set {pods.name}: no node can take such a pod: {never}"
        self._judged[uid] = None
        return ""


def _place(workload: JsonMapping) -> tuple[int, str, str]:
    """Return the sort key of workloads: Kueue's priority, then age."""
    metadata = workload["metadata"]
    priority = int((workload.get("spec") or {}).get("priority") or 0)
    return -priority, metadata["creationTimestamp"], metadata["name"]


def _version(workload: JsonMapping) -> str:
    return str(workload["metadata"]["resourceVersion"])


def _name(workload: JsonMapping) -> str:
    metadata = workload["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"
