"""Evict pods for waiting pods (`HAMI_SCHEDULER_PREEMPTION_MODE=on`).

The evictions of a plan are tried first (dry run). Then the plan is written with its room, the pod
is nominated, and the victims are evicted. When their cards are free, the pod is tried again and
takes the room, which is closed to all other pods. The room is a grant in state `reserved`, so a
scheduler that becomes active continues from the ledger. kube-scheduler begins no preemption itself:
/filter names the node (`FilterResult.awaited`), and the victims' condition has kube-scheduler's
reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cachetools import TTLCache
from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.k8s.annotations import RETRY_AT
from hamicommon.k8s.pod_groups import group_of
from hamicommon.k8s.pod_object import is_managed_by_kueue, owner_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.ledger.model import Draft, Entry, Room, RoomVictim, StateStep
from hamicommon.preemption.holdings import Holder
from hamicommon.preemption.planner import Plan
from hamicommon.process.backoff import Backoff
from hamicommon.vendors.pod_request import PodRequests

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.rooms import Rooms
from hami_scheduler.ledger.writer import LedgerWriter
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.placer import draft_of
from hami_scheduler.placement.waiting_pods import REFUSED_S, WaitingPod, WaitingPods
from hami_scheduler.pod_ending import with_condition
from hami_scheduler.pod_events import Announcer
from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import HeldRoom, Victim
from hami_scheduler.preemption.planning import PreemptionPlans, delay_s

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.allocations.rooms import PostgresRooms

logger = logging.getLogger(__name__)

ACTOR = "preemption"
PLANNED, BLOCKED, PREEMPTED = "PreemptionPlanned", "PreemptionBlocked", "Preempted"
KUBE_SCHEDULERS_REASON = "PreemptionByScheduler"
"""Reason of the condition `DisruptionTarget` on victims.

It shows kube-scheduler that the victim frees capacity, so that it begins no preemption itself.
"""
SWITCHED_OFF = "preemption was switched off (HAMI_SCHEDULER_PREEMPTION_MODE is not on)"
LOOK_INTERVAL_S = 1.0
MIN_WAKE_S, MAX_WAKE_S = 2.0, 30.0
"""Backoff for retrying a pod that does not use its ready room, as it lacks something else."""
PLAN_AGAIN_S = REFUSED_S
"""Time after which a pod without a plan is planned for again: its possible nodes expire then."""
MAX_ROOMS_PER_HOUR = 3
"""Maximum rooms (reservations of cards) for one pod per hour."""
MAX_CONDITION_ATTEMPTS = 5
MAX_PLANNED = 10_000
_NOT_LOOKED_AT = frozenset({NodeName("")})


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionLimits:
    """Limits of preemption from the settings."""

    is_on: bool = True
    """Whether pods are preempted; if not, only existing rooms are kept."""
    after_s: float
    room_s: float
    per_minute: int
    max_victims: int


@dataclass(eq=False, kw_only=True)
class Preemptor:
    """Reserve cards (rooms) for waiting pods, evict victims, and keep rooms until used."""

    store: PostgresRooms
    rooms: Rooms
    plans: PreemptionPlans
    waiting: WaitingPods
    state: ClusterState
    writer: LedgerWriter
    pods: Mapping[PodUid, JsonMapping]
    """Pods of the pod watch."""
    pod_api: PodApi
    requests: PodRequests
    announcer: Announcer
    instruments: SchedulerInstruments
    limits: PreemptionLimits
    is_grouped: Callable[[PodUid], bool] = lambda _: False
    """Return whether the pod starts together with other pods."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _looked_at: TTLCache[PodUid, frozenset[NodeName] | None] = field(
        default_factory=lambda: TTLCache(MAX_PLANNED, PLAN_AGAIN_S), init=False
    )
    """Pods that were planned for, with None, or retried to learn their possible nodes, with their
    nominated node then."""
    _held_only: TTLCache[PodUid, None] = field(
        default_factory=lambda: TTLCache(MAX_PLANNED, PLAN_AGAIN_S), init=False
    )
    """Nominated pods that need preemption: they wait for it like other pods."""
    _noted: set[AllocationId] = field(default_factory=set, init=False)
    """Victims whose allocation history already has the reason."""
    _wakes: dict[AllocationId, tuple[Backoff, datetime]] = field(default_factory=dict, init=False)
    """Backoff and next retry of each pod whose room is ready."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Lock held while a room is written and while a pod is evicted.

    No pod is evicted for a room that another plan takes over.
    """

    # Rooms that are held

    async def keep_rooms(self) -> None:
        """Continue the existing rooms: evict, nominate, retry. Raises: Unavailable."""
        before = {room.id for room in self.rooms}
        self.rooms.replace(await self.store.list_held_rooms())
        await self._measure(before - {room.id for room in self.rooms})
        self._noted &= {each.allocation_id for room in self.rooms for each in room.victims}
        self._wakes = {
            room.id: self._wakes[room.id] for room in self.rooms if room.id in self._wakes
        }
        for room in self.rooms:
            with self.instruments.bulkhead.item("preemption", room.pod_uid):
                try:
                    await self._keep(room)
                except HamiError as exc:
                    # The next round continues; the room's deadline ends it.
                    extra = {"pod_uid": room.pod_uid, "error": str(exc)}
                    logger.warning("Failed to continue a preemption, retrying", extra=extra)

    async def _measure(self, over: Collection[AllocationId]) -> None:
        self.instruments.rooms_held.set(len(self.rooms))
        self.instruments.preemption_held_memory.clear()
        for room in self.rooms:
            held = self.instruments.preemption_held_memory.labels(room.node)
            held.inc(room.memory_mib * 2**20)
        for taken_s in await self.store.taken_after_s(over) if over else ():
            self.instruments.preemption_room_seconds.observe(taken_s)

    async def _keep(self, room: HeldRoom) -> None:
        closed = next(
            (why for why, n in self.plans.closed.by_reason().items() if room.node in n), ""
        )
        if closed:
            await self._give_up(room, f"nodes that {closed} accept no pods")
            return
        if not await self._nominate(room):
            return
        for victim in room.victims:
            if victim.is_evicted or victim.is_gone:
                continue
            async with self._lock:
                if not await self.store.is_held(room.id):
                    return
                problem = await self._evict(room, victim) if self.limits.is_on else SWITCHED_OFF
            if problem:
                await self._give_up(room, problem)
                return
        now = self.clock()
        backoff, due_at = self._wakes.get(room.id, (Backoff(MIN_WAKE_S, MAX_WAKE_S), now))
        if room.is_ready and now >= due_at:
            await self._wake(PodRef(room.namespace, room.pod_name, room.pod_uid))
            self._wakes[room.id] = backoff, now + timedelta(seconds=backoff.next_s())

    async def _nominate(self, room: HeldRoom) -> bool:
        """Set the pod's nominated node, so that kube-scheduler keeps CPU and memory.

        Return False if the pod is gone.
        """
        pod = self.pods.get(room.pod_uid)
        if pod is None:
            return True  # the watch may lag; that the pod is gone ends the room elsewhere
        if (pod.get("status") or {}).get("nominatedNodeName") == room.node:
            return True
        try:
            await self.pod_api.nominate(pod, room.node)
        except NotFound:
            return False
        return True

    async def _evict(self, room: HeldRoom, victim: Victim) -> str:
        """Evict the victim's pod; return why it can't be evicted. Raises: Unavailable."""
        message = (
            f"evicted to free cards for {_name(room)} (priority {room.priority}), plan {room.id}"
        )
        problem, outcome = "", "gone"
        try:
            pod = await self.pod_api.get(victim.namespace, victim.pod_name)
            if pod["metadata"]["uid"] == victim.pod_uid:
                if victim.allocation_id not in self._noted:
                    # Before it, as the grant may be over a moment later.
                    await self._note(victim, message)
                    self._noted.add(victim.allocation_id)
                await self.pod_api.evict(pod)
                outcome = "evicted"
                await self._show(victim, message)
        except NotFound:
            pass
        except Conflict as exc:
            outcome = "blocked"
            problem = clip(f"{_name(victim)} could not be evicted: {exc}")
        await self.store.note_eviction(room.id, victim.allocation_id, problem=problem)
        if problem:
            await self._note(victim, f"stays: {problem}")
        self.instruments.preemption_victims.labels(outcome).inc()
        if outcome == "evicted":
            reference = PodRef(victim.namespace, victim.pod_name, victim.pod_uid)
            self.announcer.announce(reference, PREEMPTED, message)
            extra = {"pod_uid": victim.pod_uid, "for": room.pod_uid, "plan": room.id}
            logger.warning("Evicted a pod to make room", extra=extra)
        return problem

    async def _note(self, victim: Victim, message: str) -> None:
        """Add the reason to the history of the victim's allocation. Raises: Unavailable."""
        for state in (AllocationState.BOUND, AllocationState.ALLOCATED):
            await self.writer.advance(
                StateStep(
                    allocation_id=victim.allocation_id,
                    sources=frozenset({state}),
                    target=state,
                    reason=message,
                    actor=ACTOR,
                )
            )

    async def _show(self, victim: Victim, message: str) -> None:
        """Set the condition `DisruptionTarget`, by which kube-scheduler recognizes a victim."""
        try:
            for attempt in range(1, MAX_CONDITION_ATTEMPTS + 1):
                pod = await self.pod_api.get(victim.namespace, victim.pod_name)
                conditions = (pod.get("status") or {}).get("conditions") or []
                shown = with_condition(
                    conditions, KUBE_SCHEDULERS_REASON, message, now=self.clock()
                )
                try:
                    await self.pod_api.set_conditions(pod, shown)
                except Conflict:  # its kubelet writes the status at the same moment
                    if attempt == MAX_CONDITION_ATTEMPTS:
                        raise
                else:
                    return
        except HamiError as exc:
            # The event and the ledger have it, too.
            extra = {"pod_uid": victim.pod_uid, "error": str(exc)}
            logger.info("Failed to write a victim's condition", extra=extra)

    async def _give_up(self, room: HeldRoom, reason: str) -> None:
        step = StateStep(
            allocation_id=room.id,
            sources=frozenset({AllocationState.RESERVED}),
            target=AllocationState.FAILED,
            reason=reason,
            actor=ACTOR,
        )
        if await self.writer.advance(step) is None:
            return
        self.rooms.replace(each for each in self.rooms if each.id != room.id)
        self._looked_at.pop(room.pod_uid, None)
        self.instruments.preemption_plans.labels("failed").inc()
        wasted = sum(each.is_evicted for each in room.victims)
        extra = {"pod_uid": room.pod_uid, "plan": room.id, "reason": reason, "wasted": wasted}
        logger.warning("Gave up the room held for a pod", extra=extra)
        reference = PodRef(room.namespace, room.pod_name, room.pod_uid)
        self.announcer.announce(
            reference,
            BLOCKED,
            f"the cards reserved on {room.node} are no longer reserved: {reason}",
        )

    # New rooms

    async def plan_next(self) -> None:
        """Plan preemption for the first waiting pod that is due, and reserve its cards."""
        pod = self._next()
        if pod is not None:
            await self._make_room(pod)

    def _next(self) -> WaitingPod | None:
        """Return the first waiting pod that is due for a plan, if any pod may be preempted."""
        first = next((pod for pod in self.waiting.in_order() if self._is_due(pod)), None)
        if first is None:
            return None
        specs = (pod.get("spec") or {} for pod in self.pods.values())
        # The others that wait have no higher priority.
        may_end = any(
            int(spec.get("priority") or 0) < first.priority
            for spec in specs
            if spec.get("nodeName")
        )
        return first if may_end else None

    def _is_due(self, waiting: WaitingPod) -> bool:
        if self.is_grouped(waiting.uid):
            return False  # one room would not let the group start
        pod = self.pods.get(waiting.uid)
        if pod is None or (pod.get("spec") or {}).get("preemptionPolicy") == "Never":
            return False
        if group_of(pod) is not None:
            return False  # room for one of its pods would not start it
        if is_managed_by_kueue(pod):
            return False  # Kueue evicts whole workloads, by its own priorities
        if self.rooms.of(waiting.uid) is not None:
            return False
        asked = self._looked_at.get(waiting.uid, _NOT_LOOKED_AT)
        if asked is None:
            return False
        if asked == _nominated_nodes(pod) and not self.waiting.offered_to(waiting.uid):
            return False  # kube-scheduler has not tried it since: it lacks something else
        if _nominated_nodes(pod) and waiting.uid not in self._held_only:
            return True  # kube-scheduler has ended pods for it, whose cards are to be held
        return self._has_waited(waiting, pod)

    def _has_waited(self, waiting: WaitingPod, pod: JsonMapping) -> bool:
        age_s = (self.clock() - datetime.fromisoformat(waiting.created_at)).total_seconds()
        return age_s >= delay_s(pod, self.limits.after_s)

    async def _make_room(self, waiting: WaitingPod) -> None:
        self._looked_at[waiting.uid] = None
        reference = PodRef(waiting.namespace, waiting.name, waiting.uid)
        try:
            pod = await self.pod_api.get(waiting.namespace, waiting.name)
            if pod["metadata"]["uid"] != waiting.uid or (pod.get("spec") or {}).get("nodeName"):
                return
            evicted, rooms = await self.store.lately(waiting.uid)
            # A room that is over leaves its nomination behind.
            nominated = frozenset[NodeName]() if rooms else _nominated_nodes(pod)
            offered = nominated or self.waiting.offered_to(waiting.uid)
            if not offered:
                self._looked_at[waiting.uid] = _nominated_nodes(pod)
                await self._wake(reference)
                return
            with self.instruments.preemption_plan_seconds.time():
                question = await self.plans.question(pod, offered)
                found = await self.plans.search(question)
            if found.fits_now:
                await self._wake(reference)
                return
            why, problem = "no-plan", found.problem
            if found.plans and found.plans[0].victims and not self._has_waited(waiting, pod):
                self._looked_at.pop(waiting.uid, None)
                self._held_only[waiting.uid] = None
                return
            for plan in found.plans:
                why, problem = await self._begin(waiting, pod, plan, evicted=evicted, rooms=rooms)
                if not problem:
                    return
        except HamiError as exc:
            why, problem = "error", str(exc)
        self.instruments.preemption_plans.labels("none").inc()
        self.instruments.preemption_blocked.labels(why).inc()
        self.announcer.announce(
            reference, BLOCKED, clip(f"no pod is preempted for this pod: {problem}")
        )

    async def _wake(self, pod: PodRef) -> None:
        """Make kube-scheduler retry the pod."""
        at = self.clock().isoformat(timespec="milliseconds")
        await self.pod_api.annotate(pod, annotations={RETRY_AT: at})

    async def _begin(
        self, waiting: WaitingPod, pod: Json, plan: Plan, *, evicted: int, rooms: int
    ) -> tuple[str, str]:
        """Record the plan's room and begin its evictions; return (label, text) if that fails.

        Args:
            waiting: the pod that gets the cards.
            pod: the pod as the API server has it.
            plan: the pods to evict, and the placement.
            evicted: number of pods evicted in the last minute.
            rooms: number of rooms that the pod had in the last hour.

        Raises: HamiError.
        """
        victims = [each for each in plan.victims if not each.is_room]
        if rooms >= MAX_ROOMS_PER_HOUR:
            return "limit", f"cards were reserved for it {rooms} times in the last hour"
        if len(victims) > self.limits.max_victims:
            most = f"at most {self.limits.max_victims} may be"
            return "limit", f"{len(victims)} pods would have to be evicted, {most}"
        if evicted + len(victims) > self.limits.per_minute:
            most = f"at most {self.limits.per_minute} may be"
            return "limit", f"{evicted} pods were evicted in the last minute, {most}"
        longest_s = 0
        for holder in victims:
            namespace, _, name = holder.pod.partition("/")
            victim = await self.pod_api.get(namespace, name)
            longest_s = max(longest_s, _grace_s(victim))
            try:
                await self.pod_api.evict(victim, dry_run=True)
            except Conflict as exc:
                return "eviction", f"{holder.pod} can't be evicted: {exc}"
        for holder in plan.ending:
            ending = self.pods.get(holder.uid)
            longest_s = max(longest_s, _grace_s(ending or {}))
        draft = self._draft(waiting, pod, plan, lease_s=longest_s + self.limits.room_s)
        if self.state.quotas.conflict(draft.namespace, draft.quota) is not None:
            return "quota", "its namespace's quota does not allow its request"
        room = Room(
            priority=waiting.priority,
            victims=(
                *(_victim(each) for each in victims),
                *(_victim(each, is_ending=True) for each in plan.ending),
            ),
        )
        pod_name = f"{waiting.namespace}/{waiting.name}"
        async with self._lock:
            # In order: no grant gets between a room that ends and the new one.
            ended = [
                self.writer.submit(
                    StateStep(
                        allocation_id=each.allocation_id,
                        sources=frozenset({AllocationState.RESERVED}),
                        target=AllocationState.RELEASED,
                        reason=f"its cards went to {pod_name}, priority {waiting.priority}",
                        actor=ACTOR,
                    )
                )
                for each in plan.victims
                if each.is_room and each.allocation_id is not None
            ]
            evidence = {"core_totals": dict(draft.core_totals)}
            change = await self.writer.enter(
                Entry(draft=draft, state=AllocationState.RESERVED, room=room, evidence=evidence)
            )
            for step in ended:
                await step
            self._on_planned(waiting, change.allocation, victims, plan.ending)
        return "", ""

    def _draft(self, waiting: WaitingPod, pod: Json, plan: Plan, *, lease_s: float) -> Draft:
        draft = draft_of(
            waiting.request,
            plan.placement,
            self.state.cluster,
            self.requests.vendors,
            lease_s=lease_s,
            owner=owner_of(pod),
        )
        # The cards change when the victims go.
        return replace(draft, seen={}, actor=ACTOR)

    def _on_planned(
        self,
        waiting: WaitingPod,
        row: Allocation,
        victims: Sequence[Holder],
        ending: Sequence[Holder],
    ) -> None:
        self.instruments.preemption_plans.labels("made").inc()
        names = ", ".join(each.pod for each in (*victims, *ending))
        text = f"cards on {row.node} are reserved until these pods are gone: {names}; plan {row.id}"
        self.announcer.announce(
            PodRef(waiting.namespace, waiting.name, waiting.uid), PLANNED, clip(text), warning=False
        )
        extra = {"pod_uid": waiting.uid, "node": row.node, "victims": names, "plan": row.id}
        logger.info("Holding room for a pod", extra=extra)


def _nominated_nodes(pod: JsonMapping) -> frozenset[NodeName]:
    node = (pod.get("status") or {}).get("nominatedNodeName")
    return frozenset({NodeName(node)}) if node else frozenset()


def _grace_s(pod: JsonMapping) -> int:
    return int((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 0)


def _victim(holder: Holder, *, is_ending: bool = False) -> RoomVictim:
    assert holder.allocation_id is not None
    return RoomVictim(
        allocation_id=holder.allocation_id, priority=holder.priority, is_ending=is_ending
    )


def _name(of: HeldRoom | Victim) -> str:
    return f"{of.namespace}/{of.pod_name}"
