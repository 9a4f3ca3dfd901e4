"""A view at one moment, for the record of a decision (`explain/record.py` encodes it)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.placement.cluster.cards import Cards


class Frozen(NamedTuple):
    """Contents of a view at one moment; later changes of the view leave it as it is."""

    version: int
    """`ClusterView.version` then."""
    inventory_version: int
    """Equal for moments between which no node's cards were written, only counters."""
    names: tuple[NodeName, ...]
    """All nodes, in no particular order."""
    usages: tuple[tuple[DeviceUsage, ...], ...]
    """Per node, its cards by place; their own `used_*` may be older than `used`."""
    rows: tuple[int, ...]
    """Which of the nodes `used` is about, as positions in `names`."""
    used: npt.NDArray[np.int32]
    """(rows, places, 3): used slots, MiB and percent of every card."""


def used_of(cards: Cards) -> npt.NDArray[np.int32]:
    """(rows, places, 3): what is granted on the cards, as `Frozen.used`."""
    columns = (
        cards.slots - cards.free_slots,
        cards.memory - cards.free_memory,
        cards.core - cards.free_core,
    )
    return np.stack(columns, axis=-1).astype(np.int32)
