"""CPU left on the hosts, as far as the API server's pods show it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hamicommon.domain.ids import NodeName
from hamicommon.placement.cluster.cards import Int

UNLIMITED_CPU = 2**40
"""More thousandths of a core than any host has."""


class FreeCpu:
    """By node, in thousandths of a core."""

    def __init__(self) -> None:
        self._known: dict[NodeName, int] = {}

    def set(self, node: NodeName, free_milli: int | None) -> bool:
        """Set the CPU that pods have not asked for; None: unknown. False when that is no news."""
        if self._known.get(node) == free_milli:
            return False
        if free_milli is None:
            del self._known[node]
        else:
            self._known[node] = free_milli
        return True

    def of(self, names: Sequence[NodeName], rows: Int) -> Int:
        """(rows,); `UNLIMITED_CPU` where it is not known. `names` are the nodes by row."""
        found = (self._known.get(names[row], UNLIMITED_CPU) for row in rows.tolist())
        return np.fromiter(found, np.int64, len(rows))
