"""Convert inventories of nodes from the bus's payloads to domain values."""

from __future__ import annotations

from datetime import datetime

from hamicommon.domain.devices import GpuDevice, MigProfile, NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.events import Inventory, InventoryDevice


def inventory_of(report: Inventory, *, received_at: datetime) -> NodeInventory:
    """Convert an inventory, dated by the bus: a node's clock may be hours off."""
    return NodeInventory(
        node=NodeName(report.node),
        observed_at=received_at,
        devices=tuple(card_of(item) for item in report.devices),
        pair_scores={
            GpuUuid(a): {GpuUuid(b): score for b, score in row.items()}
            for a, row in report.pair_scores.items()
        },
    )


def card_of(item: InventoryDevice) -> GpuDevice:
    """Convert one card of an inventory."""
    # Not by `model_dump`: 8 cards of each of thousands of nodes.
    profiles = tuple(MigProfile(**vars(profile)) for profile in item.mig_profiles)
    return GpuDevice(**{**vars(item), "uuid": GpuUuid(item.uuid), "mig_profiles": profiles})
