"""Changes that a node's report makes to the ledger's cards: a pure comparison.

In: the cards as the ledger has them and as the agent reports them. Out: cards to insert, cards to
update, and whose health changed. `adapters/postgres/inventory.py` writes it down.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hamicommon.domain.devices import GpuDevice, NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName, card_key
from hamicommon.vendors.nvidia.nvidia import NAME as NVIDIA

NO_LONGER_REPORTED = "no longer reported by its node"
MAX_CARDS = 1024
"""Cards of one node. Machines have 16, of which MIG makes 112; more is a mistake or an attack."""


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
class ScreenedCards:
    """Cards of one report: which are taken, and why the others are not."""

    accepted: tuple[GpuDevice, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """The reason, by uuid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A card became usable or stopped being so."""

    uuid: GpuUuid
    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChanges:
    """Rows to write; all empty if the report has no news."""

    inserts: tuple[GpuDevice, ...] = ()
    updates: tuple[KnownCard, ...] = ()
    health: tuple[HealthChange, ...] = ()

    @property
    def empty(self) -> bool:
        """True when nothing must be written."""
        return not (self.inserts or self.updates)


def keyed(inventory: NodeInventory, known: Collection[GpuUuid]) -> NodeInventory:
    """The inventory of a node's annotations, with the ledger's names of its cards.

    Drivers of other vendors than NVIDIA name cards by number or bus address, and so do those of
    other nodes. `known`: names of the node's cards in the ledger. A card that was written under its
    id alone, by a version that made no keys, keeps that name: live grants refer to it.
    """
    names = {
        device.uuid: card_key(inventory.node, device.uuid)
        for device in inventory.devices
        if device.vendor != NVIDIA
        and (device.uuid not in known or card_key(inventory.node, device.uuid) in known)
    }
    return replace(
        inventory,
        devices=tuple(
            replace(device, uuid=names.get(device.uuid, device.uuid))
            for device in inventory.devices
        ),
    )


def screen(reported: Sequence[GpuDevice], holders: Mapping[GpuUuid, NodeName]) -> ScreenedCards:
    """Leave out cards that can't be this node's; the others do not suffer for them.

    `holders`: of the reported cards those that another node has, with its name.
    """
    accepted: dict[GpuUuid, GpuDevice] = {}
    refused: dict[str, str] = {}
    for device in reported:
        holder = holders.get(device.uuid)
        if holder is not None:
            refused[device.uuid] = f"node {holder} has it: uuids must be unique in the cluster"
        elif device.uuid in accepted:
            refused[device.uuid] = "reported more than once: the first report of it counts"
        elif len(accepted) == MAX_CARDS:
            refused[device.uuid] = f"a node has at most {MAX_CARDS} cards"
        else:
            accepted[device.uuid] = device
    return ScreenedCards(accepted=tuple(accepted.values()), refused=refused)


def compare(known: Mapping[GpuUuid, KnownCard], reported: Sequence[GpuDevice]) -> InventoryChanges:
    """Compare; a card that is known and not reported stays, but as not present and unhealthy."""
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
