"""A card's row of the ledger: what is granted on it, and whether it can take a slice.

The one place of that rule. The Postgres store applies it to rows that its transaction has locked,
the fake ledger to its own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.ledger.cards.demands import WHOLE_CARD_CORE_PERCENT, CardDemand
from hamicommon.ledger.model import CardCounters


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

    def can_take(self, node: NodeName, want: CardDemand, *, mutex: bool) -> bool:
        """Whether a new grant of `want` on this node fits (protocol 1.0.4, rules 8 to 14).

        `mutex`: the card must be empty.
        """
        cores = self.core_percent if want.core_total is None else want.core_total
        return (
            self.node == node
            and self.is_offered
            and not (want.respects_cordon and self.is_cordoned)
            and want.seen in (None, self.version)
            and self.used_slots + want.slots <= self.slots
            and self.used_memory_mib + want.memory_mib <= self.memory_mib
            and self.used_core_percent + want.core_percent <= cores
            and not (mutex and self.used_slots > 0)
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
