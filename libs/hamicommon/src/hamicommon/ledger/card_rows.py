"""A card's row of the ledger: what is granted on it, what an allocation takes, and whether it fits.

The one place of that rule. The Postgres store applies it to rows that its transaction has locked,
the fake ledger to its own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """Amounts that one allocation takes from a card, and rules that the counters can't show."""

    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int
    policy: Policy = _ANY_CARD
    """The pod's own wishes about cards."""
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
    """A card with its capacity and what is granted on it; amounts in slots, MiB and percent."""

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
    """Greater than the capacity while more is held than the card has now."""
    version: int
    holdings: dict[AllocationId, list[Mapping[str, Any]]] = field(default_factory=dict)
    """`{"role", "detail"}` of every slice that has a detail, by its grant."""

    def can_take(self, node: NodeName, want: CardDemand) -> bool:
        """Whether a new grant of `want` on this node fits (protocol 1.0.4, rules 8 to 14)."""
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
        """Count a grant, after `can_take`."""
        self._add(want, 1)
        if want.core_total is not None:
            self.ceiling_core_percent = max(self.ceiling_core_percent, want.core_total)
        if want.details:
            self.holdings[owner] = list(want.details)

    def count_held(self, owner: AllocationId, held: CardDemand) -> None:
        """Count slices that are held already; the ceilings rise to them if they have to."""
        self.take(owner, held)
        self.ceiling_slots = max(self.ceiling_slots, self.used_slots)
        self.ceiling_memory_mib = max(self.ceiling_memory_mib, self.used_memory_mib)
        self.ceiling_core_percent = max(self.ceiling_core_percent, self.used_core_percent)

    def give_back(self, owner: AllocationId, held: CardDemand) -> None:
        """Return a grant's slices; the ceilings come down with them, never below capacity."""
        self._add(held, -1)
        self.ceiling_slots = max(self.slots, self.used_slots)
        self.ceiling_memory_mib = max(self.memory_mib, self.used_memory_mib)
        self.ceiling_core_percent = max(self.core_percent, self.used_core_percent)
        self.holdings.pop(owner, None)

    def details(self) -> tuple[Mapping[str, Any], ...]:
        """The details of all slices on the card that have any."""
        return tuple(item["detail"] for items in self.holdings.values() for item in items)

    def counters(self) -> CardCounters:
        """The row's counters, for those who follow the ledger."""
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
        # What was counted falsely before is no reason to count below zero.
        self.used_slots = max(0, self.used_slots + sign * demand.slots)
        self.used_memory_mib = max(0, self.used_memory_mib + sign * demand.memory_mib)
        self.used_core_percent = max(0, self.used_core_percent + sign * demand.core_percent)

    def _has_places_for(self, want: CardDemand) -> bool:
        """Whether slices that are held at the same time overlap nowhere (migration 0033)."""
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
