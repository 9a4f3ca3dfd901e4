"""Placement of a whole group in one decision, at the /filter of the first member.

Either all needed members fit, and each is assumed on its node; or none is, and the verdict answers
every member until a card, a quota or a member changes. A group that assembled in vain backs off.
`hamicommon/placement/groups.py` decides; `extender/group_barrier.py` holds the members at /bind.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodOwner
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.groups import group_sentence
from hamicommon.explain.sentences import count_noun, quota_sentence, stock_of
from hamicommon.k8s.pod_groups import PodGroup, own_quorum
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Draft
from hamicommon.placement.groups import GroupDecision, decide_group
from hamicommon.process.backoff import Backoff
from hamicommon.vendors.pod_request import PodRequests

from hami_scheduler.ledger.cluster_state import ClusterState, Forgotten
from hami_scheduler.ledger.quota import quota_short
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions import DecisionTrace, group_trace
from hami_scheduler.placement.group_members import Assembly, GroupMembers, Member, Place
from hami_scheduler.placement.placer import draft_of

MIN_BACKOFF_S, MAX_BACKOFF_S = 5.0, 60.0
TURN_AFTER_S = 1.0
"""Time after which an assembling group keeps its nodes, and later groups must use others."""
BIND_MARGIN_S = 5.0
"""Time by which an assumption outlives the wait at the /bind barrier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVerdict:
    """Refusal of a group: why no member starts now."""

    sentence: str
    key: tuple[object, ...]
    """State of the group, the cards and the quotas when the group was refused."""
    quorum: int
    answered: set[PodUid] = field(default_factory=set)
    """Members that got this refusal or an earlier one; they are retried when all members fit."""
    until: float = float("inf")
    offered: tuple[NodeName, ...] | None = None
    """Nodes offered for the member that asked; None: the refusal holds for any nodes."""
    recorded: set[PodUid] = field(default_factory=set)
    """Members whose refusal was recorded."""


@dataclass(slots=True)
class _Group:
    """Memory of a group between calls; losing it costs time, never correctness."""

    verdict: GroupVerdict | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(MIN_BACKOFF_S, MAX_BACKOFF_S))
    not_before: float = float("-inf")
    why_backs_off: str = ""
    first_asked: float | None = None
    planned_at: float = 0.0
    place: Place = (0, "", "")
    nodes: frozenset[NodeName] = frozenset()
    """Nodes that the group's plan uses."""
    asked: int = 0
    """Number of decisions about the group."""
    is_known_to_be_few: bool = False
    """Whether it was recorded that too few pods of the group exist."""


@dataclass(eq=False, kw_only=True)
class GroupPlans:
    """Places groups, and remembers the decisions.

    `bind_s`: how long members wait for each other at /bind; `wake`: have kube-scheduler try pods.
    """

    members: GroupMembers
    state: ClusterState
    requests: PodRequests
    silent: Callable[[], frozenset[NodeName]]
    instruments: SchedulerInstruments
    wake: Callable[[Iterable[PodRequest]], None]
    binding_s: float
    bind_s: float
    owner_of: Callable[[JsonMapping], PodOwner]
    note_visit: Callable[[JsonMapping, PodRequest], None]
    record: Callable[[DecisionTrace], None]
    clock: Callable[[], float] = time.monotonic
    at_barrier: Callable[[PodGroup], bool] = lambda _: False
    """Return whether members wait at /bind, so that their nodes are settled."""
    on_vain: Callable[[PodGroup, str], None] = lambda _group, _why: None
    """Called when members that wait at /bind can no longer start."""
    on_member_gone: Callable[[PodGroup, PodUid], None] = lambda _group, _uid: None
    _groups: dict[PodGroup, _Group] = field(default_factory=dict, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Lock that lets one decision run in a thread at a time."""

    def place(
        self, group: PodGroup, pod: JsonMapping, names: Sequence[NodeName]
    ) -> Draft | GroupVerdict | None:
        """Return the member's assumed placement, or why its group waits.

        None: no member waits for it; it is placed separately.
        """
        uid = PodUid(pod["metadata"]["uid"])
        known = self._groups.setdefault(group, _Group())
        verdict, now = known.verdict, self.clock()
        offered = tuple(names)
        if (
            verdict is not None
            and now < verdict.until
            and verdict.offered in (None, offered)
            and verdict.key == self._key(group)
        ):
            verdict.answered.add(uid)
            return verdict
        found = self.members.assembly(group)
        quorum = own_quorum(pod)
        if found is None and quorum is not None and not group.is_native:
            # The pod watch is behind kube-scheduler's.
            found = Assembly(group=group, quorum=quorum, present=0, waiting=())
        if found is None or not found.needed or self.members.has_started(uid):
            return None
        if known.first_asked is None:
            known.first_asked = now
        others = [each.request.uid for each in found.waiting if each.request.uid != uid]
        if now < known.not_before:
            return self._refuse(known, found, uid, known.why_backs_off, until=known.not_before)
        if len(found.waiting) < found.needed or len(others) == len(found.waiting):
            if not known.is_known_to_be_few:
                few = f"fewer pods exist than the {found.needed} that start together"
                self._record(found, few)
                known.is_known_to_be_few = True
            sentence = f"{len(found.waiting)} of the {found.needed} pods that start together exist"
            return self._refuse(known, found, uid, sentence)
        assumed = self.state.assumption(uid)
        if assumed is not None and assumed.draft.placement.node in names:
            return assumed.draft
        fixed = [other for other in others if self.state.assumption(other) is not None]
        known.asked += 1
        drafts, why = self._drafts(known, found, uid, names, fixed)
        if drafts is None and fixed and not self.at_barrier(group):
            # No member relies on the others' nodes: all of them are decided again.
            fixed = []
            drafts, why = self._drafts(known, found, uid, names, fixed)
        if drafts is not None:
            self._assume(known, found, drafts, is_first=not fixed)
            return next((each for each in drafts if each.pod_uid == uid), None)
        if self.at_barrier(group):
            self.on_vain(group, why)
            return self._refuse(known, found, uid, known.why_backs_off, until=known.not_before)
        if self.state.lift([uid, *others]):
            self.state.notify_freed()
        self._record(found, why)
        return self._refuse(known, found, uid, why, offered=offered)

    def _record(self, found: Assembly, message: str, *, is_placed: bool = False) -> None:
        group = found.group
        self.record(
            group_trace(
                *("group", group.namespace, group.name),
                size=found.quorum,
                is_placed=is_placed,
                message=message,
            )
        )

    def _assume(
        self, known: _Group, found: Assembly, drafts: Sequence[Draft], *, is_first: bool
    ) -> None:
        for draft in drafts:
            self.state.assume(draft, ttl_s=self.bind_s + BIND_MARGIN_S)
        by_uid = {each.request.uid: each for each in found.waiting}
        for draft in drafts:
            # From now on its condition shows whether kube-scheduler has given it up.
            member = by_uid[draft.pod_uid]
            self.note_visit(member.pod, member.request)
        nodes = {draft.placement.node for draft in drafts}
        if is_first:
            known.planned_at = self.clock()
            where = f"{count_noun(len(drafts), 'pod')} on {count_noun(len(nodes), 'node')}"
            self._record(found, f"{where}, {found.needed} needed", is_placed=True)
        known.place = found.place
        known.nodes = frozenset(nodes) if is_first else known.nodes | nodes
        answered = known.verdict.answered if known.verdict is not None else frozenset[PodUid]()
        known.verdict = None
        self.wake([each.request for each in found.waiting if each.request.uid in answered])

    def _drafts(
        self,
        known: _Group,
        found: Assembly,
        uid: PodUid,
        names: Sequence[NodeName],
        fixed: Collection[PodUid],
    ) -> tuple[list[Draft] | None, str]:
        """Place the members that are not fixed; return their drafts, or why they don't fit."""
        free = [each for each in found.waiting if each.request.uid not in fixed]
        # Of equal ones the one that asks is first: it is the one that is certain to come.
        free.sort(key=lambda each: (-each.priority, each.request.uid != uid))
        needed = max(1, found.needed - len(fixed))
        with self.state.without([each.request.uid for each in free]):
            decision, candidates = self._decide(known, found, free, uid, names, needed)
            if not decision.fits:
                stock = stock_of(
                    usage.device
                    for usages in self.state.cluster.frozen().usages
                    for usage in usages
                )
                why = group_sentence(decision, stock, candidates=candidates, settled=len(fixed))
                return None, self._behind(known, found) + why
            drafts = self._as_drafts(free, decision)
            why = self._over_quota(found.group, drafts, needed)
            return (None, why) if why else (drafts, "")

    def _decide(
        self,
        known: _Group,
        found: Assembly,
        free: Sequence[Member],
        uid: PodUid,
        names: Sequence[NodeName],
        needed: int,
    ) -> tuple[GroupDecision, int]:
        closed = self.silent() | self._taken_by_those_before(known, found)
        offered = tuple(name for name in names if name not in closed) if closed else tuple(names)
        nodes = tuple(name for name in self.state.cluster.nodes if name not in closed)
        decision = decide_group(
            [each.request for each in free],
            self.state.cluster,
            needed=needed,
            offered=offered,
            elsewhere=nodes,
            asking=uid,
        )
        return decision, len(nodes)

    def _as_drafts(self, free: Sequence[Member], decision: GroupDecision) -> list[Draft]:
        """Return drafts of the placements.

        Cards used by several members get increasing versions.
        """
        taken: set[GpuUuid] = set()
        drafts = []
        for member in free:
            placement = decision.placements.get(member.request.uid)
            if placement is None:
                continue
            draft = draft_of(
                member.request,
                placement,
                self.state.cluster,
                self.requests.vendors,
                lease_s=self.binding_s,
                owner=self.owner_of(member.pod),
            )
            seen = {uuid: version + (uuid in taken) for uuid, version in draft.seen.items()}
            taken |= {card.uuid for card in placement.footprints()}
            drafts.append(replace(draft, seen=seen))
        return drafts

    def _over_quota(self, group: PodGroup, drafts: list[Draft], needed: int) -> str:
        """Drop drafts that exceed the quota; return why if too few are left."""
        while True:
            amounts: Counter[str] = Counter()
            for draft in drafts:
                amounts.update(draft.quota)
            conflict = self.state.quotas.conflict(group.namespace, amounts)
            if conflict is None:
                return ""
            if len(drafts) <= needed:
                return quota_sentence(quota_short(conflict, self.requests.vendors))
            drafts.pop()

    def _taken_by_those_before(self, known: _Group, found: Assembly) -> frozenset[NodeName]:
        """Return the nodes of earlier groups that have been assembling for a while."""
        nodes: frozenset[NodeName] = frozenset()
        for group, other in self._before(known, found.place):
            if self.is_assembling(group):
                nodes |= other.nodes
        return nodes

    def _behind(self, known: _Group, found: Assembly) -> str:
        names = [
            group.key for group, _ in self._before(known, found.place) if self.is_assembling(group)
        ]
        return f"behind {', '.join(sorted(names))} on their nodes: " if names else ""

    def _before(self, known: _Group, place: Place) -> list[tuple[PodGroup, _Group]]:
        until = self.clock() - TURN_AFTER_S
        return [
            (group, other)
            for group, other in self._groups.items()
            if other is not known and other.nodes and other.planned_at < until
            if other.place < place
        ]

    def is_assembling(self, group: PodGroup) -> bool:
        """Return whether members hold cards while they wait for other members."""
        found = self.members.assembly(group)
        return (
            found is not None
            and found.needed > 0
            and any(self.state.assumption(each.request.uid) for each in found.waiting)
        )

    # Verdicts

    def _key(self, group: PodGroup) -> tuple[object, ...]:
        return (
            self.members.generation(group),
            self.members.is_held_elsewhere(group) and self.members.quorum(group),
            self.state.changes,
            self.silent(),
        )

    def _refuse(
        self,
        known: _Group,
        found: Assembly,
        uid: PodUid,
        sentence: str,
        *,
        until: float = float("inf"),
        offered: tuple[NodeName, ...] | None = None,
    ) -> GroupVerdict:
        before = known.verdict
        known.verdict = GroupVerdict(
            sentence=sentence,
            key=self._key(found.group),
            quorum=found.quorum,
            answered={uid} if before is None else before.answered | {uid},
            until=until,
            offered=offered,
        )
        if before is None or before.sentence != sentence:
            self.instruments.groups.labels("refused").inc()
        return known.verdict

    async def would_fit(self, group: PodGroup) -> bool:
        """Return whether a waiting group would be placed if it were retried now."""
        known, found = self._groups.get(group), self.members.assembly(group)
        if found is None:
            return True
        if known is not None and self.clock() < known.not_before:
            return False
        if len(found.waiting) < found.needed:
            return False
        decision = await self.decision(found)
        return decision.fits and bool(decision.placements)

    async def decision(self, found: Assembly) -> GroupDecision:
        """Place all waiting members on a copy of the cards, without their own assumptions.

        On a copy of the cards in a thread: of a large group it takes a second.
        """
        members = [each.request for each in found.waiting]
        async with self._turn:
            silent = self.silent()
            nodes = tuple(name for name in self.state.cluster.nodes if name not in silent)
            with self.state.without([each.uid for each in members]):
                cards = self.state.cluster.copy()
            return await asyncio.to_thread(
                decide_group, members, cards, needed=found.needed, offered=nodes
            )

    # What becomes of a group

    def give_up(self, group: PodGroup, reason: str, *, result: str) -> None:
        """Free the cards that the group's members hold, and retry the group after a backoff."""
        known = self._groups.setdefault(group, _Group())
        pause_s = known.backoff.next_s()
        known.not_before = self.clock() + pause_s
        known.why_backs_off = f"{reason}; tried again in {pause_s:.0f} s"
        known.nodes = frozenset()
        self.instruments.groups.labels(result).inc()
        found = self.members.assembly(group)
        if found is not None:
            self._record(found, reason)
        for each in found.waiting if found is not None else ():
            self.state.forget(each.request.uid, Forgotten.GROUP_GIVEN_UP)
        asyncio.get_running_loop().call_later(pause_s, self._try_again, group)

    def _try_again(self, group: PodGroup) -> None:
        known, found = self._groups.get(group), self.members.assembly(group)
        if known is not None and found is not None:
            self.wake([each.request for each in found.waiting])

    def on_started(self, group: PodGroup, uids: Collection[PodUid]) -> None:
        """Record that the grants of these members are written."""
        self.members.start(uids)
        known = self._groups.get(group)
        if known is None:
            return
        found = self.members.assembly(group)
        if found is not None and not found.needed:
            self.instruments.groups.labels("bound").inc()
            if known.first_asked is not None:
                waited_s = self.clock() - known.first_asked
                self.instruments.group_wait_seconds.observe(waited_s)
            self.wake([each.request for each in found.waiting])
            del self._groups[group]

    def pod_seen(self, pod: JsonMapping) -> None:
        """Add a pod from the watch; if it completes its group, retry the refused members."""
        self.members.pod_seen(pod)
        group = self.members.of(PodUid(pod["metadata"]["uid"]))
        known = None if group is None else self._groups.get(group)
        if group is None or known is None or known.verdict is None or not known.verdict.answered:
            return
        if known.verdict.key[0] == self.members.generation(group):
            return
        if not self.members.may_be_complete(group):
            return
        found = self.members.assembly(group)
        if found is not None and len(found.waiting) >= found.needed:
            self.wake([e.request for e in found.waiting if e.request.uid in known.verdict.answered])
            known.verdict.answered.clear()

    def pod_gone(self, pod: JsonMapping) -> None:
        """Remove a deleted pod, and its group after the last pod."""
        uid = PodUid(pod["metadata"]["uid"])
        group = self.members.of(uid)
        if group is None:
            return
        self.on_member_gone(group, uid)
        self.members.pod_gone(pod)
        if group not in self.members and group in self._groups:
            self.instruments.groups.labels("gone").inc()
            del self._groups[group]

    def forget(self, group: PodGroup) -> None:
        """Forget the assumptions of a group that kube-scheduler has given up."""
        found = self.members.assembly(group)
        for each in found.waiting if found is not None else ():
            self.state.forget(each.request.uid, Forgotten.GROUP_GIVEN_UP)

    def held_cards(self) -> int:
        """Return the number of slices that members hold while they wait for other members."""
        return sum(
            len(assumed.cards)
            for group in self._groups
            if (found := self.members.assembly(group)) is not None
            for each in found.waiting
            if (assumed := self.state.assumption(each.request.uid)) is not None
        )

    def about(self, group: PodGroup) -> Mapping[str, object]:
        """Return the state of the group in this replica's memory, for explain."""
        known = self._groups.get(group)
        if known is None:
            return {"asked": 0}
        pause_s = known.not_before - self.clock()
        return {
            "asked": known.asked,
            "waits_since_s": None
            if known.first_asked is None
            else round(self.clock() - known.first_asked, 1),
            "backs_off_s": round(pause_s, 1) if pause_s > 0 else None,
            "why": known.verdict.sentence if known.verdict is not None else "",
        }
