"""The ledger in memory, with the same guards as Postgres (ports AllocationStore, LedgerReader).

Each change is here; `capacity.py` has the guards over cards and quotas, `ledger_rows.py` has the
written rows and their queries.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from hamicommon.domain.allocations import (
    LIVE_STATES,
    Allocation,
    AllocationState,
    ContainerGrant,
)
from hamicommon.domain.ids import AllocationId
from hamicommon.errors import CapacityConflict, Conflict, HamiError
from hamicommon.ledger.card_rows import CardDemand, CardRow, demands, wanted_by
from hamicommon.ledger.claimed import mark_counted, without
from hamicommon.ledger.model import (
    CardCounters,
    Change,
    Command,
    Draft,
    Entry,
    QuotaOf,
    QuotaUse,
    Rules,
    StateStep,
    refused_together,
)

from tests.fakes.capacity import LedgerCapacity
from tests.fakes.ledger_rows import Clock, LedgerRows

_MAY_LEAVE = frozenset(
    {AllocationState.BOUND, AllocationState.ALLOCATED, AllocationState.RELEASING}
)


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
        self._wanted: dict[AllocationId, tuple[CardDemand, ...]] = {}

    async def begin(self, draft: Draft) -> Change:
        """See the port."""
        return await self.enter(Entry(draft=draft))

    async def enter(self, entry: Entry) -> Change:
        """See the port."""
        return self._enter(entry)

    async def commit(self, commands: Sequence[Command]) -> list[Change | HamiError | None]:
        """See the port."""
        answers: list[Change | HamiError | None] = [
            self._done(each) if isinstance(each, StateStep) else None for each in commands
        ]
        entries = [(i, each) for i, each in enumerate(commands) if isinstance(each, Entry)]
        for name in dict.fromkeys(each.together for _, each in entries):
            some = [(i, each) for i, each in entries if each.together == name]
            before = copy.deepcopy(self._state()) if name else {}
            for number, entry in some:
                answers[number] = self._done(entry)
            refused = [a for i, _ in some if isinstance(a := answers[i], HamiError)]
            if name and refused:
                vars(self).update(before)
                for number, entry in some:
                    if not isinstance(answers[number], HamiError):
                        answers[number] = refused_together(entry, refused[-1])
        return answers

    def _state(self) -> dict[str, Any]:
        names = ("_cards", "_quotas", "_allocations", "_events", "_bound_at", "_wanted", "_changes")
        return {name: value for name, value in vars(self).items() if name in names}

    def _done(self, command: Command) -> Change | HamiError | None:
        try:
            return self._enter(command) if isinstance(command, Entry) else self._advance(command)
        except Conflict as exc:
            return exc

    def _enter(self, entry: Entry) -> Change:
        """Raises: CapacityConflict, QuotaConflict, Conflict."""
        entry = self._with_shared_claims(entry)
        draft, node = entry.draft, entry.draft.placement.node
        wanted = wanted_by(draft, self._rules)
        if self._live_of(draft.pod_uid) is not None:
            raise Conflict(f"pod {draft.pod_uid} has a grant already")
        if draft.allocation_id in self._allocations:
            raise Conflict(f"allocation {draft.allocation_id} exists already")
        if entry.guarded:
            self._check_quota(draft.namespace, draft.quota)
            self._check(node, wanted, self._leaving(entry))
        for want in wanted:
            card = self._cards.get(want.uuid)
            if card is None or card.node != node:
                raise CapacityConflict(want.uuid, f"card {want.uuid} is not on node {node}")
        quotas = self._count_quota(draft.namespace, draft.quota, 1)
        count = CardRow.take if entry.guarded else CardRow.count_held
        count = count if entry.room is None else CardRow.count_room
        self._take(draft.allocation_id, wanted, count)
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
        if entry.room is not None:
            self._wanted[allocation.id] = wanted
        if allocation.state in (AllocationState.BOUND, AllocationState.ALLOCATED):
            self._bound_at.setdefault(allocation.id, now)
        sequence = self._note(allocation, None, entry.reason)
        counters = self._counters([card.uuid for card in wanted])
        return Change(allocation=allocation, sequence=sequence, counters=counters, quotas=quotas)

    def _leaving(self, entry: Entry) -> dict[AllocationId, tuple[CardDemand, ...]]:
        """Raises: Conflict when a victim has changed."""
        victims = {each.allocation_id for each in entry.room.victims} if entry.room else set()
        rows = [self._allocations.get(each) for each in victims]
        if any(row is None or row.state not in _MAY_LEAVE for row in rows):
            raise Conflict("a pod that was to end for it has changed; it is planned again")
        return {row.id: demands(row.containers) for row in rows if row is not None}

    def _with_shared_claims(self, entry: Entry) -> Entry:
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
        return replace(entry, draft=draft, claims=mark_counted(entry.claims, held))

    async def advance(self, step: StateStep) -> Change | None:
        """See the port."""
        return self._advance(step)

    def _advance(self, step: StateStep) -> Change | None:
        old = self._allocations.get(step.allocation_id)
        if (
            old is None
            or old.state not in step.sources
            or (step.token is not None and old.token != step.token)
            or (step.node is not None and old.node != step.node)
        ):
            return None
        counters: tuple[CardCounters, ...] = ()
        quotas: tuple[QuotaUse, ...] = ()
        if old.state is AllocationState.RESERVED and step.target is AllocationState.BINDING:
            room = self._wanted.get(old.id) or demands(old.containers, self._rules)
            self._check(old.node, room, {old.id: room})
            self._give(old.id, room)
            self._take(old.id, room)
            counters = self._counters([card.uuid for card in room])
        if step.target not in LIVE_STATES:
            given = without(old.containers, old.claims, self._pass_on(old))
            quotas = self._count_quota(old.namespace, self._quota_of(given), -1)
            self._give(old.id, demands(given))
            counters = self._counters([card.uuid for card in demands(given)])
        token = old.token
        if step.new_token:
            self._token += 1
            token = self._token
        deadline = None if step.lease_s is None else self._clock() + timedelta(seconds=step.lease_s)
        new = replace(old, state=step.target, reason=step.reason, token=token, deadline=deadline)
        self._allocations[new.id] = new
        if new.state in (AllocationState.BOUND, AllocationState.ALLOCATED):
            self._bound_at.setdefault(new.id, self._clock())
        sequence = self._note(new, old.state, step.reason)
        return Change(allocation=new, sequence=sequence, counters=counters, quotas=quotas)

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
