"""Compare a node's report with the ledger's cards. Pure.

Input: the cards in the ledger, and those that the agent reports. Output: cards to insert, cards to
update, and changes of health. `adapters/postgres/inventory.py` writes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hamicommon.domain.devices import GpuDevice, NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName, card_key
from hamicommon.vendors.nvidia.nvidia import NAME as NVIDIA

NO_LONGER_REPORTED = "no longer reported by its node"
MAX_CARDS = 1024
"""Maximum number of cards of one node: machines have 16, with MIG 112."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCard:
    """Card in the ledger: its last report, and whether it was present."""

    device: GpuDevice
    present: bool

    @property
    def usable(self) -> bool:
        """Return whether grants may be made on it."""
        return self.present and self.device.healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedCards:
    """Cards of one report: accepted ones, and reasons for refused ones."""

    accepted: tuple[GpuDevice, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons by uuid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """Change of a card between usable and unusable."""

    uuid: GpuUuid
    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChanges:
    """Rows to write; empty if the report changes nothing."""

    inserts: tuple[GpuDevice, ...] = ()
    updates: tuple[KnownCard, ...] = ()
    health: tuple[HealthChange, ...] = ()

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to write."""
        return not (self.inserts or self.updates)


def key_cards(inventory: NodeInventory, known: Collection[GpuUuid]) -> NodeInventory:
    """Return an inventory from annotations, with the ledger's names of the cards.

    Drivers of other vendors than NVIDIA name cards by number or bus address, which repeat on other
    nodes. `known`: names of the node's cards in the ledger. A card that was written under only its
    id, by a version without keys, keeps that name: live grants refer to it.
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
    """Refuse cards that can't belong to this node, and accept the others.

    `holders`: the reported cards that another node has, with its name.
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
    """Compare; a known card that is not reported becomes absent and unhealthy."""
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
