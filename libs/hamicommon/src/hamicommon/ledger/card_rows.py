"""Rules of a card's row in the ledger, in memory: its granted amounts, and whether a slice fits.

Only this module has the rule. The Postgres store applies it to rows that its transaction has
locked, the fake ledger to its own rows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from types import MappingProxyType
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Footprint, footprints
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.domain.requests import Policy
from hamicommon.ledger.model import CardCounters, Draft, Rules
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import VendorRules

WHOLE_CARD_CORE_PERCENT = 100

_STANDARD = VendorRules()
_ANY_CARD = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDemand:
    """Amounts that one allocation takes from a card, and rules that counters can't express."""

    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int
    policy: Policy = _ANY_CARD
    """Card policy of the pod."""
    exclusive: bool = False
    """Whether a container wants all cores, so that no other pod may be on the card (rule 13)."""
    coreless: bool = False
    """Whether a container wants no cores, which is refused if all are granted (rule 14)."""
    respects_cordon: bool = True
    """Whether a cordoned card is refused."""
    seen: int | None = None
    """Version that the card must still have; None: any."""
    core_total: int | None = None
    """Number of the card's cores as this slice counts them; None: as the card registers them."""
    details: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """`{"role", "detail"}` of every slice that has a detail."""


_NONE: Mapping[Any, Any] = MappingProxyType({})


def wanted_by(draft: Draft, rules: Rules) -> tuple[CardDemand, ...]:
    """Return the demands of a draft; see `demands`."""
    return demands(
        draft.placement.containers,
        rules,
        policy=draft.policy or _ANY_CARD,
        seen=draft.seen,
        core_totals=draft.core_totals,
    )


def demands(
    containers: tuple[ContainerGrant, ...],
    rules: Rules = _NONE,
    *,
    policy: Policy = _ANY_CARD,
    seen: Mapping[GpuUuid, int] = _NONE,
    core_totals: Mapping[GpuUuid, int] = _NONE,
) -> tuple[CardDemand, ...]:
    """Return the demand on each card, in the order of uuids, in which rows are locked."""
    slices: dict[GpuUuid, list[tuple[ContainerGrant, DeviceShare]]] = {}
    for container in containers:
        for share in container.shares:
            slices.setdefault(share.uuid, []).append((container, share))
    return tuple(
        _demand(
            card,
            slices[card.uuid],
            rules,
            policy,
            seen=seen.get(card.uuid),
            core_total=core_totals.get(card.uuid),
        )
        for card in footprints(containers)
    )


def _demand(
    card: Footprint,
    slices: Sequence[tuple[ContainerGrant, DeviceShare]],
    rules: Rules,
    policy: Policy,
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
        policy=policy,
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


@dataclass(slots=True, kw_only=True)
class CardRow:
    """One card: capacity and granted amounts in slots, MiB and percent."""

    uuid: GpuUuid
    node: NodeName
    is_offered: bool
    """Whether the card is present and healthy."""
    is_cordoned: bool
    slots: int
    memory_mib: int
    core_percent: int
    used_slots: int
    used_memory_mib: int
    used_core_percent: int
    ceiling_slots: int
    ceiling_memory_mib: int
    ceiling_core_percent: int
    """Maximum of granted cores; above the capacity while more is granted than the card now has."""
    version: int
    holdings: dict[AllocationId, list[Mapping[str, Any]]] = field(default_factory=dict)
    """`{"role", "detail"}` of every slice that has a detail, by allocation; a room's has `room`."""

    def can_take(self, node: NodeName, want: CardDemand) -> bool:
        """Return whether a new grant fits on the card (protocol 1.0.4, rules 8 to 14)."""
        cores = self.core_percent if want.core_total is None else want.core_total
        return (
            self.node == node
            and self.is_offered
            and not (want.respects_cordon and self.is_cordoned)
            and want.seen in (None, self.version)
            and self.used_slots + want.slots <= self.slots
            and self.used_memory_mib + want.memory_mib <= self.memory_mib
            and self.used_core_percent + want.core_percent <= cores
            and not (want.policy.mutex and self.used_slots > 0)
            and not (want.exclusive and cores == WHOLE_CARD_CORE_PERCENT and self.used_slots > 0)
            and not (want.coreless and cores != 0 and self.used_core_percent == cores)
            and (not want.details or self._has_places_for(want))
        )

    def take(self, owner: AllocationId, want: CardDemand) -> None:
        """Add a grant after `can_take` allowed it."""
        self._add(want, 1)
        if want.core_total is not None:
            self.ceiling_core_percent = max(self.ceiling_core_percent, want.core_total)
        if want.details:
            self.holdings[owner] = list(want.details)

    def count_held(self, owner: AllocationId, held: CardDemand) -> None:
        """Add slices that already exist, raising the ceilings if necessary."""
        self.take(owner, held)
        self.ceiling_slots = max(self.ceiling_slots, self.used_slots)
        self.ceiling_memory_mib = max(self.ceiling_memory_mib, self.used_memory_mib)
        self.ceiling_core_percent = max(self.ceiling_core_percent, self.used_core_percent)

    def count_room(self, owner: AllocationId, room: CardDemand) -> None:
        """Count a room: its places may be those of slices that are to go (migration 0043)."""
        details = tuple({**item, "room": True} for item in room.details)
        self.count_held(owner, replace(room, details=details))

    def give_back(self, owner: AllocationId, held: CardDemand) -> None:
        """Remove a grant's slices and lower the ceilings, never below capacity."""
        self._add(held, -1)
        self.ceiling_slots = max(self.slots, self.used_slots)
        self.ceiling_memory_mib = max(self.memory_mib, self.used_memory_mib)
        self.ceiling_core_percent = max(self.core_percent, self.used_core_percent)
        self.holdings.pop(owner, None)

    def details(self) -> tuple[Mapping[str, Any], ...]:
        """Return the details of all slices on the card that have one."""
        return tuple(item["detail"] for items in self.holdings.values() for item in items)

    def counters(self) -> CardCounters:
        """Return the card's counters, for readers that follow the ledger."""
        return CardCounters(
            node=self.node,
            uuid=self.uuid,
            used_slots=self.used_slots,
            used_memory_mib=self.used_memory_mib,
            used_core_percent=self.used_core_percent,
            version=self.version,
            holdings=self.details(),
        )

    def _add(self, demand: CardDemand, sign: int) -> None:
        # Even after an earlier miscount the counters never fall below zero.
        self.used_slots = max(0, self.used_slots + sign * demand.slots)
        self.used_memory_mib = max(0, self.used_memory_mib + sign * demand.memory_mib)
        self.used_core_percent = max(0, self.used_core_percent + sign * demand.core_percent)

    def _has_places_for(self, want: CardDemand) -> bool:
        """Return whether slices held at the same time do not overlap (migration 0033)."""
        others = [
            place
            for items in self.holdings.values()
            for item in items
            if (place := _place(item)) is not None
        ]
        own = [place for item in want.details if (place := _place(item)) is not None]
        together = [
            (_place(first), _place(second))
            for first, second in combinations(want.details, 2)
            if "init" not in (first["role"], second["role"])
            or (first["role"], second["role"]) == ("sidecar", "init")
        ]
        pairs = [*product(own, others), *((a, b) for a, b in together if a and b)]
        return not any(a[0] < b[1] and b[0] < a[1] for a, b in pairs)


def _place(item: Mapping[str, Any]) -> tuple[int, int] | None:
    place = item["detail"].get("placement")
    return None if place is None else (place["start"], place["start"] + place["size"])
