"""A card's row of the ledger in memory: its counters, and the guards that Postgres has over it.

`ledger.py` asks `takes` before a grant and `count`s it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import AllocationId, NodeName
from hamicommon.ledger.cards.demands import CardDemand
from hamicommon.ledger.model import CardCounters


@dataclass(slots=True)
class CardBuilder:
    """A card with what is granted on it, as its row has it."""

    node: NodeName
    device: GpuDevice
    used_slots: int = 0
    used_memory_mib: int = 0
    used_core_percent: int = 0
    cordoned: bool = False
    version: int = 1
    holdings: dict[AllocationId, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)

    def details(self) -> tuple[Mapping[str, Any], ...]:
        """Of the slices on it that have any."""
        return tuple(item["detail"] for items in self.holdings.values() for item in items)

    def counters(self) -> CardCounters:
        """As announced with a change."""
        return CardCounters(
            node=self.node,
            uuid=self.device.uuid,
            used_slots=self.used_slots,
            used_memory_mib=self.used_memory_mib,
            used_core_percent=self.used_core_percent,
            version=self.version,
            holdings=self.details(),
        )

    def usage(self) -> DeviceUsage:
        """As the engine sees it."""
        return DeviceUsage(
            device=self.device,
            used_slots=self.used_slots,
            used_memory_mib=self.used_memory_mib,
            used_core_percent=self.used_core_percent,
            cordoned=self.cordoned,
            holdings=self.details(),
        )

    def takes(
        self, want: CardDemand, *, owner: AllocationId | None, back: CardDemand | None, mutex: bool
    ) -> bool:
        """Whether the slice fits, when `owner` gives `back` what it holds here."""
        return _room(self, back, want, mutex=mutex) and _disjoint(self, owner, want)

    def count(self, owner: AllocationId, demand: CardDemand, sign: int) -> None:
        """Grants it (`sign` 1), or takes it back (-1)."""
        self.used_slots += sign * demand.slots
        self.used_memory_mib += sign * demand.memory_mib
        self.used_core_percent += sign * demand.core_percent
        self.version += 1
        self.holdings.pop(owner, None)
        if sign > 0 and demand.details:
            self.holdings[owner] = demand.details


def _room(card: CardBuilder, mine: CardDemand | None, want: CardDemand, *, mutex: bool) -> bool:
    slots = card.used_slots - (mine.slots if mine else 0)
    memory = card.used_memory_mib - (mine.memory_mib if mine else 0)
    core = card.used_core_percent - (mine.core_percent if mine else 0)
    device = card.device
    cores = device.core_percent if want.core_total is None else want.core_total
    return (
        device.healthy
        and not (want.respects_cordon and card.cordoned)
        and want.seen in (None, card.version)
        and slots + want.slots <= device.slots
        and memory + want.memory_mib <= device.memory_mib
        and core + want.core_percent <= cores
        and not (mutex and slots > 0)
        and not (want.exclusive and cores == 100 and slots > 0)
        and not (want.coreless and cores != 0 and core == cores)
    )


def _disjoint(card: CardBuilder, gives: AllocationId | None, want: CardDemand) -> bool:
    """Migration 0033: placements of slices that are held at the same time never overlap."""
    others = [
        place
        for owner, items in card.holdings.items()
        if owner != gives
        for item in items
        if (place := _place(item))
    ]
    own = [place for item in want.details if (place := _place(item))]
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
