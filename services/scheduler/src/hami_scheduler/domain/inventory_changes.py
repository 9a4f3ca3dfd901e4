"""What a node's report changes in the ledger's cards: a pure comparison.

In: the cards as the ledger has them and as the agent reports them. Out: cards to insert, cards to
update, and whose health changed. `adapters/postgres_inventory.py` writes it down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid

NO_LONGER_REPORTED = "no longer reported by its node"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCard:
    """A card's row: what was last reported, and whether it was there then."""

    device: GpuDevice
    present: bool

    @property
    def usable(self) -> bool:
        """True when grants may be made on it."""
        return self.present and self.device.healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A card became usable or stopped being so."""

    uuid: GpuUuid
    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChanges:
    """What must be written; all empty when the report says nothing new."""

    inserts: tuple[GpuDevice, ...] = ()
    updates: tuple[KnownCard, ...] = ()
    health: tuple[HealthChange, ...] = ()

    @property
    def empty(self) -> bool:
        """True when nothing must be written."""
        return not (self.inserts or self.updates)


def compare(known: Mapping[GpuUuid, KnownCard], reported: Sequence[GpuDevice]) -> InventoryChanges:
    """Compares; a card that is known and not reported stays, but as not present and unhealthy."""
    inserts: list[GpuDevice] = []
    updates: list[KnownCard] = []
    health: list[HealthChange] = []
    for device in reported:
        old = known.get(device.uuid)
        if old is None:
            inserts.append(device)
        elif not old.present or old.device != device:
            updates.append(KnownCard(device=device, present=True))
        if old is None or old.usable != device.healthy:
            health.append(
                HealthChange(uuid=device.uuid, healthy=device.healthy, reason=device.health_reason)
            )
    seen = {device.uuid for device in reported}
    for uuid, card in known.items():
        if uuid in seen or not card.present:
            continue
        lost = replace(card.device, healthy=False, health_reason=NO_LONGER_REPORTED)
        updates.append(KnownCard(device=lost, present=False))
        if card.usable:
            health.append(HealthChange(uuid=uuid, healthy=False, reason=NO_LONGER_REPORTED))
    return InventoryChanges(inserts=tuple(inserts), updates=tuple(updates), health=tuple(health))
