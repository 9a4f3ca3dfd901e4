"""Cards as arrays: shape (nodes, places), one column per attribute, empty places padded.

`view.ClusterView` keeps one such table of the whole cluster; `place.py` takes the candidates' rows
of it. A place without a card has model 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]


class Model(NamedTuple):
    """What the type rules ask of a card; few distinct ones exist in a cluster."""

    vendor: str
    type: str
    mode: str


NO_MODEL = 0
"""Index of the model of an empty place."""


@dataclass(slots=True, kw_only=True)
class Cards:
    """A table of cards; all arrays have the same shape (nodes, places)."""

    model: Int
    """Index into the view's list of models."""
    status: Codes
    """0, or the Rule of an unhealthy or cordoned card."""
    slots: Int
    memory: Int
    core: Int
    used_slots: Int
    used_memory: Int
    used_core: Int
    numa: Int
    index: Int

    @classmethod
    def empty(cls, nodes: int, places: int) -> Cards:
        """A table without a card."""
        shape = (nodes, places)
        return cls(
            model=np.zeros(shape, np.int64),
            status=np.zeros(shape, np.uint8),
            slots=np.zeros(shape, np.int64),
            memory=np.zeros(shape, np.int64),
            core=np.zeros(shape, np.int64),
            used_slots=np.zeros(shape, np.int64),
            used_memory=np.zeros(shape, np.int64),
            used_core=np.zeros(shape, np.int64),
            numa=np.zeros(shape, np.int64),
            index=np.zeros(shape, np.int64),
        )

    def resized(self, nodes: int, places: int) -> Cards:
        """A copy in a larger table."""
        grown = Cards.empty(nodes, places)
        height, width = self.model.shape
        for name in self.__slots__:
            getattr(grown, name)[:height, :width] = getattr(self, name)
        return grown

    def take(self, rows: Int | slice) -> Cards:
        """The given rows; a slice shares memory with this table."""
        return Cards(
            model=self.model[rows],
            status=self.status[rows],
            slots=self.slots[rows],
            memory=self.memory[rows],
            core=self.core[rows],
            used_slots=self.used_slots[rows],
            used_memory=self.used_memory[rows],
            used_core=self.used_core[rows],
            numa=self.numa[rows],
            index=self.index[rows],
        )

    def fresh(self) -> Cards:
        """The same cards with usage of their own: taking from them leaves this unchanged."""
        return Cards(
            model=self.model,
            status=self.status,
            slots=self.slots,
            memory=self.memory,
            core=self.core,
            used_slots=self.used_slots.copy(),
            used_memory=self.used_memory.copy(),
            used_core=self.used_core.copy(),
            numa=self.numa,
            index=self.index,
        )
