"""Values that go into the ledger and come out of it, apart from any driver.

The scheduler's `AllocationStore` port speaks in these; its Postgres adapter and the verified fake
in `hamicommon.testing` both implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ClaimedSlice,
    ContainerGrant,
    DeviceShare,
    Footprint,
    Origin,
    Placement,
    footprints,
)
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_owner import PodOwner
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import VendorRules

WHOLE_CARD_CORE_PERCENT = 100

QuotaAmounts = Mapping[str, int]
"""What an allocation takes of its namespace's quota, by resource name: MiB of memory, or cores."""

QuotaOf = Callable[[Sequence[ContainerGrant]], QuotaAmounts]
"""What an allocation's slices count in quotas."""

Rules = Mapping[str, VendorRules]
"""By vendor; one that is absent follows the standard rules."""

_STANDARD = VendorRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A reservation that somebody wants to make."""

    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    placement: Placement
    lease_s: float
    """How long it may stay `reserved`."""
    mutex: bool = False
    """Policy `mutex`: the cards must be empty."""
    quota: QuotaAmounts = field(default_factory=dict)
    policy: Mapping[str, object] = field(default_factory=dict)
    """Kept in the row for people."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """See `Allocation.annotations`."""
    seen: Mapping[GpuUuid, int] = field(default_factory=dict)
    """Versions of the cards as the choice saw them; checked where `VendorRules.exact` is set."""
    core_totals: Mapping[GpuUuid, int] = field(default_factory=dict)
    """See `Need.of_core`, where the vendor's need has one."""
    traceparent: str = ""
    owner: PodOwner | None = None
    """Kept in the row for people; None: unknown."""
    replaces: AllocationId | None = None
    """A reservation of the same pod that is given up in the same transaction."""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A grant for a pod that is on its node already: it begins past `reserved` and `binding`."""

    draft: Draft
    state: AllocationState
    origin: Origin
    reason: str
    evidence: Mapping[str, Any]
    """What it rests on, kept with its first event."""
    claims: tuple[ClaimedSlice, ...] = ()
    """What of the draft's slices comes by ResourceClaims. A slice that another pod holds is left
    out of the draft by the ledger: it is counted already."""

    @property
    def guarded(self) -> bool:
        """False where the slices are held already, whether the ledger has room for them or not."""
        return self.origin is not Origin.ADOPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """One guarded change of an allocation's state."""

    allocation_id: AllocationId
    sources: frozenset[AllocationState]
    """The step happens only from one of these."""
    target: AllocationState
    reason: str = ""
    actor: str = ""
    token: int | None = None
    """If given, the row must still carry it."""
    new_token: bool = False
    """Hand out the next fencing token."""
    lease_s: float | None = None
    """Deadline of the new state from now; None: it has none."""
    node: NodeName | None = None
    """If given, the row must be of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingClaim:
    """A pod's reservation on this node is to be bound: `reserved -> binding`, with a new token."""

    pod_uid: PodUid
    node: NodeName
    actor: str
    lease_s: float
    """The binding's deadline from now, at least: a later one of the reservation stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationWrite:
    """One of several reservations that are written together."""

    draft: Draft
    """It replaces no other."""
    claim: BindingClaim | None = None
    """If given, the pod is to be bound already: `reserved -> binding` is written with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An allocation's slices on other cards than before."""

    allocation_id: AllocationId
    token: int
    """The row must still carry it."""
    containers: tuple[ContainerGrant, ...]


def exchanged(
    before: tuple[ContainerGrant, ...], after: tuple[ContainerGrant, ...], rules: Rules
) -> tuple[tuple[CardDemand, ...], tuple[CardDemand, ...]]:
    """What a move gives back and what it takes.

    A card on which nothing changes is left alone: it may have fallen sick since it was granted.
    """
    held = {card.uuid: card for card in demands(before)}
    wanted = {card.uuid: card for card in demands(after, rules)}
    same = {
        uuid
        for uuid in held.keys() & wanted.keys()
        if _amounts(held[uuid]) == _amounts(wanted[uuid])
    }
    return (
        tuple(card for uuid, card in held.items() if uuid not in same),
        tuple(card for uuid, card in wanted.items() if uuid not in same),
    )


def _amounts(card: CardDemand) -> tuple[object, ...]:
    return card.slots, card.memory_mib, card.core_percent, card.details


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCounters:
    """Absolute counters of one card after a change, with the row's version."""

    node: str
    uuid: GpuUuid
    used_slots: int
    used_memory_mib: int
    used_core_percent: int
    version: int
    holdings: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """See `DeviceUsage.holdings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A committed change: the row as it is now, and the cards whose counters moved."""

    allocation: Allocation
    sequence: int
    """Number of the event in the pod's history, from 1, without a gap."""
    counters: tuple[CardCounters, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDemand:
    """What one allocation takes from one card, with the rules that the counters can't show."""

    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int
    exclusive: bool = False
    """A container wants all cores of the card: nobody else may be there (protocol 1.0.4, 13)."""
    coreless: bool = False
    """A container wants no cores: the card's must not be used up (rule 14)."""
    respects_cordon: bool = True
    """A cordoned card is closed for it."""
    seen: int | None = None
    """The card must still be of this version; None: any will do."""
    core_total: int | None = None
    """The card's cores as this slice counts them; None: as the card registers them."""
    details: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """`{"role", "detail"}` of every slice that has a detail."""


_NONE: Mapping[Any, Any] = MappingProxyType({})


def wanted_by(draft: Draft, rules: Rules) -> tuple[CardDemand, ...]:
    """`demands` of a draft."""
    return demands(
        draft.placement.containers, rules, seen=draft.seen, core_totals=draft.core_totals
    )


def is_plain(draft: Draft, rules: Rules) -> bool:
    """Whether it takes nothing but amounts of one card, which add up with those of other drafts.

    Else the card must be looked at by itself: it is to be empty, of one version, or parted in
    places.
    """
    wanted = wanted_by(draft, rules)
    if draft.replaces is not None or draft.mutex or len(wanted) != 1:
        return False
    [card] = wanted
    own = card.exclusive or card.core_total is not None or bool(card.details)
    return not own and card.seen is None


def demands(
    containers: tuple[ContainerGrant, ...],
    rules: Rules = _NONE,
    *,
    seen: Mapping[GpuUuid, int] = _NONE,
    core_totals: Mapping[GpuUuid, int] = _NONE,
) -> tuple[CardDemand, ...]:
    """Per card, ordered by uuid (the order in which rows are locked)."""
    slices: dict[GpuUuid, list[tuple[ContainerGrant, DeviceShare]]] = {}
    for container in containers:
        for share in container.shares:
            slices.setdefault(share.uuid, []).append((container, share))
    return tuple(
        _demand(
            card,
            slices[card.uuid],
            rules,
            seen=seen.get(card.uuid),
            core_total=core_totals.get(card.uuid),
        )
        for card in footprints(containers)
    )


def _demand(
    card: Footprint,
    slices: Sequence[tuple[ContainerGrant, DeviceShare]],
    rules: Rules,
    *,
    seen: int | None,
    core_total: int | None,
) -> CardDemand:
    own = rules.get(slices[0][1].vendor, _STANDARD)
    cores = [share.core_percent for _, share in slices]
    whole = max(cores) >= WHOLE_CARD_CORE_PERCENT
    # On the very version that was seen, every rule of the vendor was asked by its chooser.
    exact = own.exact and seen is not None
    return CardDemand(
        uuid=card.uuid,
        slots=card.slots,
        memory_mib=card.memory_mib,
        core_percent=card.core_percent,
        exclusive=whole and not exact and Rule.EXCLUSIVE in own.order,
        coreless=min(cores) == 0 and not exact and Rule.CORES_EXHAUSTED in own.order,
        respects_cordon=Rule.CORDONED in own.order,
        seen=seen if exact else None,
        core_total=core_total,
        details=tuple(
            {"role": container.role, "detail": dict(share.detail)}
            for container, share in slices
            if share.detail
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who is between bind and Allocate on a node."""

    pod_uid: PodUid
    allocation_id: AllocationId
    token: int
