"""The ledger in memory, with the same guards as Postgres (ports AllocationStore, LedgerReader).

Each change is here; `capacity.py` has the guards over cards and quotas, `ledger_rows.py` what was
written and how it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from hamicommon.domain.allocations import (
    LIVE_STATES,
    Allocation,
    AllocationState,
    ContainerGrant,
)
from hamicommon.domain.ids import AllocationId
from hamicommon.errors import CapacityConflict, Conflict, HamiError
from hamicommon.ledger.cards.demands import CardDemand, demands, is_plain, wanted_by
from hamicommon.ledger.cards.moves import Move, exchanged, quota_changes
from hamicommon.ledger.claimed import counted, without
from hamicommon.ledger.model import (
    BindingClaim,
    CardCounters,
    Change,
    Draft,
    Entry,
    QuotaOf,
    ReservationWrite,
    Rules,
    StateStep,
)
from hamicommon.testing.capacity import LedgerCapacity
from hamicommon.testing.ledger_rows import Clock, LedgerRows


def _no_quota(containers: Sequence[ContainerGrant]) -> dict[str, int]:
    del containers
    return {}


class FakeLedger(LedgerRows, LedgerCapacity):
    """Everything that the scheduler's Postgres adapter promises, in dictionaries."""

    def __init__(
        self,
        *,
        quota_of: QuotaOf = _no_quota,
        rules: Rules = MappingProxyType({}),
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        LedgerRows.__init__(self, clock)
        LedgerCapacity.__init__(self)
        self._quota_of = quota_of
        self._rules = rules
        self._token = 0

    async def reserve(self, draft: Draft) -> Change:
        """See the port."""
        live = self._live_of(draft.pod_uid)
        old = None if draft.replaces is None else self._allocations.get(draft.replaces)
        if draft.replaces is not None and (
            old is None or old.state is not AllocationState.RESERVED
        ):
            raise Conflict(f"allocation {draft.replaces} is no longer only reserved")
        held = () if old is None else demands(old.containers)
        wanted = wanted_by(draft, self._rules)
        node = draft.placement.node
        given_quota = {} if old is None else self._quota_of(old.containers)
        self._check_quota(draft.namespace, given_quota, draft.quota)
        self._check(node, draft.replaces, held, wanted, mutex=draft.mutex)
        if live is not None and live.id != draft.replaces:
            raise Conflict(f"pod {draft.pod_uid} was reserved by somebody else")
        if old is not None:
            step = StateStep(
                allocation_id=old.id,
                sources=frozenset({AllocationState.RESERVED}),
                target=AllocationState.RELEASED,
                reason="replaced by a new reservation",
            )
            self._apply(old, step)
        self._count_quota(draft.namespace, draft.quota, 1)
        self._count(draft.allocation_id, wanted, 1)
        now = self._clock()
        attempts = [a for a in self._allocations.values() if a.pod_uid == draft.pod_uid]
        allocation = Allocation(
            id=draft.allocation_id,
            pod_uid=draft.pod_uid,
            namespace=draft.namespace,
            pod_name=draft.pod_name,
            attempt=len(attempts) + 1,
            node=node,
            state=AllocationState.RESERVED,
            containers=draft.placement.containers,
            reserved_at=now,
            deadline=now + timedelta(seconds=draft.lease_s),
            traceparent=draft.traceparent,
            annotations=draft.annotations,
        )
        self._allocations[allocation.id] = allocation
        sequence = self._note(allocation, None, "")
        touched = {card.uuid for card in (*held, *wanted)}
        return Change(
            allocation=allocation, sequence=sequence, counters=self._counters(sorted(touched))
        )

    async def reserve_all(self, writes: Sequence[ReservationWrite]) -> list[Change | HamiError]:
        """See the port."""
        return [await self._reserved(write) for write in writes]

    async def _reserved(self, write: ReservationWrite) -> Change | HamiError:
        try:
            change = await self.reserve(write.draft)
        except Conflict as exc:
            return exc
        if write.claim is not None and is_plain(write.draft, self._rules):
            claimed = await self._claim(write.claim)
            assert claimed is not None
            return replace(change, allocation=claimed.allocation)
        return change

    async def enter(self, entry: Entry) -> Change:
        """See the port."""
        entry = self._beside_others(entry)
        draft, node = entry.draft, entry.draft.placement.node
        wanted = wanted_by(draft, self._rules)
        if entry.guarded:
            self._check_quota(draft.namespace, {}, draft.quota)
            self._check(node, None, (), wanted, mutex=draft.mutex)
        for want in wanted:
            card = self._cards.get(want.uuid)
            if card is None or card.node != node:
                raise CapacityConflict(want.uuid, f"card {want.uuid} is not on node {node}")
        if self._live_of(draft.pod_uid) is not None:
            raise Conflict(f"pod {draft.pod_uid} has a grant by somebody else")
        self._count_quota(draft.namespace, draft.quota, 1)
        self._count(draft.allocation_id, wanted, 1)
        self._token += 1
        now = self._clock()
        allocation = Allocation(
            id=draft.allocation_id,
            pod_uid=draft.pod_uid,
            namespace=draft.namespace,
            pod_name=draft.pod_name,
            attempt=1 + sum(a.pod_uid == draft.pod_uid for a in self._allocations.values()),
            node=node,
            state=entry.state,
            containers=draft.placement.containers,
            token=self._token,
            reserved_at=now,
            deadline=now + timedelta(seconds=draft.lease_s) if draft.lease_s else None,
            traceparent=draft.traceparent,
            reason=entry.reason,
            annotations=draft.annotations,
            origin=entry.origin,
            claims=entry.claims,
        )
        self._allocations[allocation.id] = allocation
        sequence = self._note(allocation, None, entry.reason)
        touched = [card.uuid for card in wanted]
        return Change(allocation=allocation, sequence=sequence, counters=self._counters(touched))

    def _beside_others(self, entry: Entry) -> Entry:
        held = {
            each.key
            for allocation in self._allocations.values()
            for each in allocation.claims
            if allocation.live and each.counted
        }
        placement = entry.draft.placement
        containers = without(placement.containers, entry.claims, held)
        if containers == placement.containers:
            return entry
        draft = replace(
            entry.draft,
            placement=replace(placement, containers=containers),
            quota=self._quota_of(containers),
        )
        return replace(entry, draft=draft, claims=counted(entry.claims, held))

    async def advance(self, step: StateStep) -> Change | None:
        """See the port."""
        old = self._allocations.get(step.allocation_id)
        if (
            old is None
            or old.state not in step.sources
            or (step.token is not None and old.token != step.token)
            or (step.node is not None and old.node != step.node)
        ):
            return None
        return self._apply(old, step)

    async def advance_all(self, steps: Sequence[StateStep]) -> list[bool]:
        """See the port."""
        return [await self.advance(step) is not None for step in steps]

    async def claim_all(self, claims: Sequence[BindingClaim]) -> list[Allocation | None]:
        """See the port."""
        changes = [await self._claim(claim) for claim in claims]
        return [None if change is None else change.allocation for change in changes]

    async def _claim(self, claim: BindingClaim) -> Change | None:
        old = self._live_of(claim.pod_uid)
        if old is None or old.node != claim.node or old.state is not AllocationState.RESERVED:
            return None
        step = StateStep(
            allocation_id=old.id,
            sources=frozenset({AllocationState.RESERVED}),
            target=AllocationState.BINDING,
            actor=claim.actor,
            new_token=True,
            lease_s=claim.lease_s,
        )
        # A deadline that is late enough is left as it is, also where the clock went back.
        return self._apply(old, step, earliest=old.deadline)

    def _apply(
        self, old: Allocation, step: StateStep, *, earliest: datetime | None = None
    ) -> Change:
        counters: tuple[CardCounters, ...] = ()
        if step.target not in LIVE_STATES:
            given = without(old.containers, old.claims, self._pass_on(old))
            self._count_quota(old.namespace, self._quota_of(given), -1)
            self._count(old.id, demands(given), -1)
            counters = self._counters([card.uuid for card in demands(given)])
        token = old.token
        if step.new_token:
            self._token += 1
            token = self._token
        deadline = None if step.lease_s is None else self._clock() + timedelta(seconds=step.lease_s)
        if deadline is not None and earliest is not None:
            deadline = max(deadline, earliest)
        new = replace(old, state=step.target, reason=step.reason, token=token, deadline=deadline)
        self._allocations[new.id] = new
        if new.state is AllocationState.BOUND:
            self._bound_at.setdefault(new.id, self._clock())
        return Change(
            allocation=new, sequence=self._note(new, old.state, step.reason), counters=counters
        )

    async def move(self, moves: Sequence[Move]) -> tuple[Change, ...] | None:
        """See the port."""
        moved = []
        for move in moves:
            old = self._allocations.get(move.allocation_id)
            if old is None or old.token != move.token or not old.live:
                return None
            moved.append((old, move))
        counted_more = quota_changes(moved, self._quota_of)
        for namespace, amounts in counted_more.items():
            more = {resource: amount for resource, amount in amounts.items() if amount > 0}
            self._check_quota(namespace, {}, more)
        swaps = [
            (old, move, *exchanged(old.containers, move.containers, self._rules))
            for old, move in moved
        ]
        before = {
            uuid: replace(card, holdings=dict(card.holdings)) for uuid, card in self._cards.items()
        }
        try:
            for old, _move, held, _wanted in swaps:
                self._count(old.id, held, -1)
            for old, _move, _held, wanted in swaps:
                self._check(old.node, old.id, (), wanted, mutex=False)
                self._count(old.id, wanted, 1)
        except CapacityConflict:
            self._cards = before
            raise
        for namespace, amounts in counted_more.items():
            self._count_quota(namespace, amounts, 1)
        return tuple(self._moved(old, move, held, wanted) for old, move, held, wanted in swaps)

    def _moved(
        self,
        old: Allocation,
        move: Move,
        held: Sequence[CardDemand],
        wanted: Sequence[CardDemand],
    ) -> Change:
        new = replace(old, containers=move.containers)
        self._allocations[new.id] = new
        sequence = self._note(new, old.state, "moved to the cards that the kubelet gave")
        touched = sorted({card.uuid for card in (*held, *wanted)})
        return Change(allocation=new, sequence=sequence, counters=self._counters(touched))

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """See the port."""
        old = self._allocations.get(allocation_id)
        if old is None or old.token != token or not old.live:
            return False
        whole = {**old.annotations, **annotations}
        self._allocations[old.id] = replace(old, annotations=whole)
        return True
