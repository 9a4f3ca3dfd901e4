"""The ledger in memory, with the same guards as Postgres (ports AllocationStore, LedgerReader)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations, product
from types import MappingProxyType
from typing import Any

from hamicommon.db.ledger import (
    CardCounters,
    CardDemand,
    Change,
    Draft,
    Entry,
    Move,
    QuotaAmounts,
    Rules,
    Step,
    demands,
    exchanged,
    wanted_by,
)
from hamicommon.domain.allocations import (
    LIVE_STATES,
    Allocation,
    AllocationState,
    ContainerGrant,
)
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import CapacityConflict, Conflict, QuotaConflict

Clock = Callable[[], datetime]


@dataclass(slots=True)
class _Card:
    node: NodeName
    device: GpuDevice
    used_slots: int = 0
    used_memory_mib: int = 0
    used_core_percent: int = 0
    cordoned: bool = False
    version: int = 1
    holdings: dict[AllocationId, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)

    def details(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(item["detail"] for items in self.holdings.values() for item in items)

    def counters(self) -> CardCounters:
        return CardCounters(
            node=self.node,
            uuid=self.device.uuid,
            used_slots=self.used_slots,
            used_memory_mib=self.used_memory_mib,
            used_core_percent=self.used_core_percent,
            version=self.version,
            holdings=self.details(),
        )


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One line of a pod's history."""

    sequence: int
    previous_state: str | None
    state: str
    reason: str


def _no_quota(containers: Sequence[ContainerGrant]) -> QuotaAmounts:
    del containers
    return {}


class FakeLedger:
    """Everything that the scheduler's Postgres adapter promises, in dictionaries."""

    def __init__(
        self,
        *,
        quota_of: Callable[[Sequence[ContainerGrant]], QuotaAmounts] = _no_quota,
        rules: Rules = MappingProxyType({}),
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._quota_of = quota_of
        self._rules = rules
        self._clock = clock
        self._cards: dict[GpuUuid, _Card] = {}
        self._allocations: dict[AllocationId, Allocation] = {}
        self._bound_at: dict[AllocationId, datetime] = {}
        self._quotas: dict[tuple[str, str], list[int]] = {}
        self._events: dict[PodUid, list[RecordedEvent]] = {}
        self._token = 0

    def add_card(self, node: NodeName, device: GpuDevice, *, cordoned: bool = False) -> None:
        """Puts a card there, or changes what it is."""
        old = self._cards.get(device.uuid)
        if old is None:
            self._cards[device.uuid] = _Card(node, device, cordoned=cordoned)
        else:
            old.device, old.cordoned, old.version = device, cordoned, old.version + 1

    def set_quota(self, namespace: str, resource: str, limit: int) -> None:
        """Limits a namespace."""
        self._quotas.setdefault((namespace, resource), [0, 0])[0] = limit

    def usage(self, uuid: GpuUuid) -> DeviceUsage:
        """The card with what is granted on it."""
        card = self._cards[uuid]
        return DeviceUsage(
            device=card.device,
            used_slots=card.used_slots,
            used_memory_mib=card.used_memory_mib,
            used_core_percent=card.used_core_percent,
            cordoned=card.cordoned,
            holdings=card.details(),
        )

    def version(self, uuid: GpuUuid) -> int:
        """The version of the card's row."""
        return self._cards[uuid].version

    def history(self, pod_uid: PodUid) -> list[RecordedEvent]:
        """The pod's events in order."""
        return list(self._events.get(pod_uid, ()))

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
            step = Step(
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

    async def enter(self, entry: Entry) -> Change:
        """See the port."""
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
        )
        self._allocations[allocation.id] = allocation
        sequence = self._note(allocation, None, entry.reason)
        touched = [card.uuid for card in wanted]
        return Change(allocation=allocation, sequence=sequence, counters=self._counters(touched))

    async def advance(self, step: Step) -> Change | None:
        """See the port."""
        old = self._allocations.get(step.allocation_id)
        if (
            old is None
            or old.state not in step.sources
            or (step.token is not None and old.token != step.token)
        ):
            return None
        return self._apply(old, step)

    def _apply(self, old: Allocation, step: Step) -> Change:
        counters: tuple[CardCounters, ...] = ()
        if step.target not in LIVE_STATES:
            self._count_quota(old.namespace, self._quota_of(old.containers), -1)
            self._count(old.id, demands(old.containers), -1)
            counters = self._counters([card.uuid for card in demands(old.containers)])
        token = old.token
        if step.new_token:
            self._token += 1
            token = self._token
        deadline = None if step.lease_s is None else self._clock() + timedelta(seconds=step.lease_s)
        new = replace(old, state=step.target, reason=step.reason, token=token, deadline=deadline)
        self._allocations[new.id] = new
        if new.state is AllocationState.BOUND:
            self._bound_at.setdefault(new.id, self._clock())
        return Change(
            allocation=new, sequence=self._note(new, old.state, step.reason), counters=counters
        )

    async def move(self, moves: Sequence[Move]) -> tuple[Change, ...] | None:
        """See the port."""
        olds = [self._allocations.get(move.allocation_id) for move in moves]
        swaps = []
        for move, old in zip(moves, olds, strict=True):
            if old is None or old.token != move.token or not old.live:
                return None
            swaps.append((old, move, *exchanged(old.containers, move.containers, self._rules)))
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

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """See the port."""
        return self._allocations.get(allocation_id)

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """See the port."""
        return self._live_of(pod_uid)

    async def latest_of(self, pod_uid: PodUid) -> Allocation | None:
        """See the port."""
        mine = [a for a in self._allocations.values() if a.pod_uid == pod_uid]
        return max(mine, key=lambda a: a.attempt, default=None)

    async def live(self, node: NodeName | None = None) -> list[Allocation]:
        """See the port."""
        return [
            a for a in self._allocations.values() if a.live and (node is None or a.node == node)
        ]

    async def standing(self) -> AsyncIterator[list[Allocation]]:
        """See the port."""
        for one in await self.live():
            yield [replace(one, containers=())]

    async def overdue(self) -> list[Allocation]:
        """See the port."""
        now = self._clock()
        return [
            a
            for a in self._allocations.values()
            if a.live and a.deadline is not None and a.deadline < now
        ]

    async def late(self, after_s: float) -> list[Allocation]:
        """See the port."""
        before = self._clock() - timedelta(seconds=after_s)
        return [
            a
            for a in self._allocations.values()
            if a.state is AllocationState.BOUND and self._bound_at[a.id] < before
        ]

    def _live_of(self, pod_uid: PodUid) -> Allocation | None:
        mine = (a for a in self._allocations.values() if a.pod_uid == pod_uid and a.live)
        return next(mine, None)

    def _check(
        self,
        node: NodeName,
        gives: AllocationId | None,
        held: Sequence[CardDemand],
        wanted: Sequence[CardDemand],
        *,
        mutex: bool,
    ) -> None:
        back: Mapping[GpuUuid, CardDemand] = {card.uuid: card for card in held}
        for want in wanted:
            card = self._cards.get(want.uuid)
            if (
                card is None
                or card.node != node
                or not (_room(card, back, want, mutex=mutex) and _disjoint(card, gives, want))
            ):
                raise CapacityConflict(
                    want.uuid, f"card {want.uuid} on {node} can no longer hold the slice"
                )

    def _count(self, owner: AllocationId, cards: Sequence[CardDemand], sign: int) -> None:
        for card in cards:
            row = self._cards[card.uuid]
            row.used_slots += sign * card.slots
            row.used_memory_mib += sign * card.memory_mib
            row.used_core_percent += sign * card.core_percent
            row.version += 1
            row.holdings.pop(owner, None)
            if sign > 0 and card.details:
                row.holdings[owner] = card.details

    def _counters(self, uuids: Sequence[GpuUuid]) -> tuple[CardCounters, ...]:
        return tuple(self._cards[uuid].counters() for uuid in uuids)

    def _check_quota(self, namespace: str, given: QuotaAmounts, wanted: QuotaAmounts) -> None:
        for resource, amount in wanted.items():
            row = self._quotas.get((namespace, resource))
            if row is not None and row[1] - given.get(resource, 0) + amount > row[0]:
                used = row[1] - given.get(resource, 0)
                raise QuotaConflict(namespace, resource, limit=row[0], used=used, wanted=amount)

    def _count_quota(self, namespace: str, amounts: QuotaAmounts, sign: int) -> None:
        for resource, amount in amounts.items():
            row = self._quotas.get((namespace, resource))
            if row is not None:
                row[1] += sign * amount

    def _note(self, allocation: Allocation, before: str | None, reason: str) -> int:
        events = self._events.setdefault(allocation.pod_uid, [])
        events.append(RecordedEvent(len(events) + 1, before, allocation.state.value, reason))
        return len(events)


def _room(
    card: _Card, back: Mapping[GpuUuid, CardDemand], want: CardDemand, *, mutex: bool
) -> bool:
    mine = back.get(want.uuid)
    slots = card.used_slots - (mine.slots if mine else 0)
    memory = card.used_memory_mib - (mine.memory_mib if mine else 0)
    core = card.used_core_percent - (mine.core_percent if mine else 0)
    device = card.device
    cores = device.core_percent if want.core_total is None else want.core_total
    return (
        device.healthy
        and not (want.heeds_cordon and card.cordoned)
        and want.seen in (None, card.version)
        and slots + want.slots <= device.slots
        and memory + want.memory_mib <= device.memory_mib
        and core + want.core_percent <= cores
        and not (mutex and slots > 0)
        and not (want.exclusive and cores == 100 and slots > 0)
        and not (want.coreless and cores != 0 and core == cores)
    )


def _disjoint(card: _Card, gives: AllocationId | None, want: CardDemand) -> bool:
    """Migration 0006: placements of live slices never overlap, but for init containers' own."""
    others = [
        place
        for owner, items in card.holdings.items()
        if owner != gives
        for item in items
        if (place := _place(item))
    ]
    own = [place for item in want.details if (place := _place(item))]
    apps = [place for item in want.details if item["role"] == "app" and (place := _place(item))]
    pairs = [*product(own, others), *combinations(apps, 2)]
    return not any(a[0] < b[1] and b[0] < a[1] for a, b in pairs)


def _place(item: Mapping[str, Any]) -> tuple[int, int] | None:
    place = item["detail"].get("placement")
    return None if place is None else (place["start"], place["start"] + place["size"])
