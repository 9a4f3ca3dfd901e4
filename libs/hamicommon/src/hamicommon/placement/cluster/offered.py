"""Which rows of the view a caller means by the nodes that it offers, and their order by name."""

from __future__ import annotations

from collections.abc import Collection
from itertools import repeat

import numpy as np

from hamicommon.domain.ids import NodeName
from hamicommon.placement.cluster.cards import NO_MODEL, Int
from hamicommon.placement.cluster.rows import Rows


class OfferedRows:
    """Finds rows; what was found for the same offer is remembered."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._asked: tuple[tuple[tuple[NodeName, ...], int], tuple[Int, tuple[NodeName, ...]]] = (
            ((), -1),
            (np.zeros(0, np.int64), ()),
        )
        self._ranks: Int | None = None

    def nodes_changed(self) -> None:
        """A node came or went."""
        self._ranks = None

    def rows_of(
        self, nodes: Collection[NodeName] | None, inventory_version: int
    ) -> tuple[Int, tuple[NodeName, ...]]:
        """See `ClusterView.rows_of`; an answer holds as long as the inventory's version."""
        if not isinstance(nodes, tuple):
            return self._find(nodes)
        key, answer = self._asked
        if key[0] is not nodes or key[1] != inventory_version:
            answer = self._find(nodes)
            answer[0].flags.writeable = False
            self._asked = (nodes, inventory_version), answer
        return answer

    def _find(self, nodes: Collection[NodeName] | None) -> tuple[Int, tuple[NodeName, ...]]:
        if nodes is None:
            nodes = self._rows.names
        wanted = dict.fromkeys(nodes)
        rows = np.fromiter(map(self._rows.of_node.get, wanted, repeat(-1)), np.int64, len(wanted))
        known = rows >= 0
        # A node's cards are written from place 0 on.
        known[known] = self._rows.table.model[rows[known], 0] != NO_MODEL
        # In their own order, whatever that of the offer: all rows are then read where they are.
        found = np.sort(rows[known])
        if len(found) == len(rows):
            return found, ()
        return found, tuple(name for name, yes in zip(wanted, known, strict=True) if not yes)

    def ranks(self, rows: Int) -> Int:
        """Position of the rows' nodes in the order of names."""
        if self._ranks is None:
            order = sorted(range(len(self._rows.names)), key=self._rows.names.__getitem__)
            self._ranks = np.empty(len(order), np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks[rows]
