"""Cards as arrays of shape (nodes, places), one per attribute; empty places are padded.

`view.ClusterView` has one such table of the whole cluster; `engine.py` takes the candidates' rows
of it. A place without a card has model 0 and nothing free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid

Int = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

NO_MODEL = 0
"""Model number of an empty place."""


def model_of(card: GpuDevice) -> GpuDevice:
    """Return the card without its identity: equal for cards of the same model and capacity.

    Rules that look at a card's kind are asked once per model; few distinct ones exist in a cluster.
    """
    return replace(card, uuid=GpuUuid(""), index=0, numa=0, healthy=True, health_reason="")


@dataclass(slots=True, kw_only=True)
class Cards:
    """Table of cards; all arrays have the same shape (nodes, places)."""

    model: Int
    """Index into the view's list of models."""
    status: Codes
    """Rule that refuses an unhealthy or cordoned card, or 0."""
    slots: Int
    memory: Int
    core: Int
    free_slots: Int
    """Free slots; negative on a card that shrank below its grants."""
    free_memory: Int
    free_core: Int
    numa: Int
    index: Int

    @classmethod
    def empty(cls, nodes: int, places: int) -> Cards:
        """Return a table without cards."""
        # Column-major, so that sums over a node's cards read long runs of memory.
        columns = {
            name: np.zeros((nodes, places), np.uint8 if name == "status" else np.int64, order="F")
            for name in cls.__slots__
        }
        return cls(**columns)

    def resized_copy(self, nodes: int, places: int) -> Cards:
        """Return a copy in a larger table."""
        grown = Cards.empty(nodes, places)
        height, width = self.model.shape
        for name in self.__slots__:
            getattr(grown, name)[:height, :width] = getattr(self, name)
        return grown

    def take(self, rows: Int | slice) -> Cards:
        """Return the given rows; a slice shares memory with this table."""
        return Cards(
            model=self.model[rows],
            status=self.status[rows],
            slots=self.slots[rows],
            memory=self.memory[rows],
            core=self.core[rows],
            free_slots=self.free_slots[rows],
            free_memory=self.free_memory[rows],
            free_core=self.free_core[rows],
            numa=self.numa[rows],
            index=self.index[rows],
        )

    def less(self, *, slots: Int | int, memory: Int | int, core: Int | int) -> Cards:
        """Return the same cards with less free capacity."""
        return self._with_free(
            self.free_slots - slots, self.free_memory - memory, self.free_core - core
        )

    def fresh(self) -> Cards:
        """Return a copy whose free amounts may be changed."""
        return self._with_free(
            self.free_slots.copy("K"), self.free_memory.copy("K"), self.free_core.copy("K")
        )

    def _with_free(self, slots: Int, memory: Int, core: Int) -> Cards:
        return Cards(
            model=self.model,
            status=self.status,
            slots=self.slots,
            memory=self.memory,
            core=self.core,
            free_slots=slots,
            free_memory=memory,
            free_core=core,
            numa=self.numa,
            index=self.index,
        )
