"""Slices that one request gets on each node that still fits.

`slices.py` fills it in, the walk (`filter.py`) spends it from the cards and gives it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage
from hamicommon.placement.cluster.cards import Cards, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.vendor_policy import Chosen

Shares = tuple[DeviceShare, ...]


@dataclass(slots=True, kw_only=True)
class Picks:
    """Slices that one request gets on every row (node).

    Arrays are (rows, count), in the order picked.
    """

    container: int
    vendor: str
    places: Int
    memory: Int
    core: Int
    slots: Int
    chosen: list[Chosen | None] | None = None
    """Answer of the chooser per row; None if the first fitting cards were taken."""

    def narrow(self, kept: Int) -> None:
        """Keep only the given rows."""
        self.places, self.memory = self.places[kept], self.memory[kept]
        self.core, self.slots = self.core[kept], self.slots[kept]
        if self.chosen is not None:
            self.chosen = [self.chosen[row] for row in kept.tolist()]

    def spend(self, cards: Cards) -> None:
        """Subtract the slices from the cards."""
        where = (np.arange(len(self.places))[:, None], self.places)
        for free, amount in (
            (cards.free_slots, self.slots),
            (cards.free_memory, self.memory),
            (cards.free_core, self.core),
        ):
            if self.chosen is None:
                free[where] -= amount
            else:
                # A chooser may take one card several times.
                np.subtract.at(free, where, amount)

    def shares(self, row: int, usages: Sequence[DeviceUsage], view: ClusterView) -> Shares:
        """Return the shares that the row gives; `usages` are its cards by place."""
        chosen = None if self.chosen is None else self.chosen[row]
        if chosen is not None:
            return chosen.shares
        type_of = view.rules(self.vendor).share_type
        return tuple(
            DeviceShare(
                uuid=usages[place].device.uuid,
                vendor=self.vendor,
                memory_mib=memory,
                core_percent=core,
                slots=slots,
                type=type_of(usages[place].device),
            )
            for place, memory, core, slots in zip(
                self.places[row].tolist(),
                self.memory[row].tolist(),
                self.core[row].tolist(),
                self.slots[row].tolist(),
                strict=True,
            )
        )
