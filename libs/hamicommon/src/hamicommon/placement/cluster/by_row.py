"""Read access to the cluster's cards by row, one row per node.

`view.ClusterView` keeps them up to date; nothing here changes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import repeat

import numpy as np

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, card_id
from hamicommon.placement.cluster.cards import NO_MODEL, Bools, Cards, Floats, Int
from hamicommon.placement.cluster.rows import Rows
from hamicommon.placement.vendor_policy import PairScores

_SCORE_WEIGHT = np.float32(10)
"""Factor by which HAMi multiplies each fraction in a node's score."""


class CardsByRow:
    """Cards, names and scores of rows 0..len(nodes)-1."""

    def __init__(self, rows: Rows) -> None:
        self.inventory_version = 0
        """Grows with every change but of counters."""
        self._rows = rows
        self._offered = OfferedRows(rows)

    @property
    def nodes(self) -> Collection[NodeName]:
        """Names of all nodes, in no particular order."""
        return self._rows.of_node.keys()

    @property
    def models(self) -> Sequence[GpuDevice | None]:
        """Distinct card models by number (`Cards.model`); index 0 stands for an empty place."""
        return self._rows.models.by_number

    def rows_of(self, nodes: Collection[NodeName] | None) -> tuple[Int, tuple[NodeName, ...]]:
        """Return the rows of the given nodes (None: all), and the nodes without a row.

        Rows are in ascending order; nodes without rows are unknown or have no card.

        The answer for a tuple is remembered: a caller that offers the same nodes again, as
        kube-scheduler does pod after pod, hands in the same tuple.
        """
        return self._offered.rows_of(nodes, self.inventory_version)

    def table(self, rows: Int) -> Cards:
        """Return the cards of the rows; shares memory with the view for one row or all."""
        if len(rows) == 1:
            # The row that a commit has changed: slices of the columns are made in no time.
            row = int(rows[0])
            return self._rows.table.take(slice(row, row + 1))
        count = len(self._rows.names)
        if len(rows) == count and np.array_equal(rows, np.arange(count)):
            return self._rows.table.take(slice(0, count))
        return self._rows.table.take(rows)

    def name(self, row: int) -> NodeName:
        """Return the node of a row."""
        return self._rows.names[row]

    def row_of(self, node: NodeName) -> int:
        """The row of a node; -1 if it has none."""
        return self._rows.of_node.get(node, -1)

    def place_of(self, uuid: GpuUuid) -> tuple[int, int] | None:
        """Row and place of a card; None if it is unknown."""
        return self._rows.places.get(uuid)

    def names(self, rows: Int) -> tuple[NodeName, ...]:
        """Return the nodes of the rows."""
        return tuple(map(self._rows.names.__getitem__, rows.tolist()))

    def uuids(self, row: int) -> tuple[GpuUuid, ...]:
        """Return the uuids of a row's cards, by place."""
        return self._rows.uuids[row]

    def usages(self, row: int) -> Sequence[DeviceUsage]:
        """Return the cards of a row with their granted amounts, by place."""
        return self._rows.usages[row]

    def pairs(self, row: int) -> PairScores:
        """Return the connection scores of the row's cards; empty if the node reported none."""
        return self._rows.pairs[row]

    def pair_matrix(self, row: int) -> Int | None:
        """Return these scores by place, (places, places); None if the node reported none."""
        scores, uuids = self._rows.pairs[row], self._rows.uuids[row]
        if not scores:
            return None
        return np.array([[scores.get(a, {}).get(b, 0) for b in uuids] for a in uuids], np.int64)

    @property
    def room(self) -> int:
        """Number of rows, including unused ones."""
        return len(self._rows.changed)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the arrays: `room`, and places per row."""
        rows, places = self._rows.table.model.shape
        return rows, places

    def row_versions(self, rows: Int | slice) -> Int:
        """Return a version per row that grows when the row changes; a slice is no copy."""
        return self._rows.changed[rows]

    def makeups(self, rows: Int) -> Int:
        """Return a number per row, equal for rows with the same models at the same places."""
        return self._rows.makeup[rows]

    def models_of(self, makeup: int) -> tuple[GpuDevice, ...]:
        """Return the models for such a number, by place."""
        models = map(
            self._rows.models.by_number.__getitem__, self._rows.makeups.by_number[makeup] or ()
        )
        return tuple(model for model in models if model is not None)

    def marks(self, uuids: Iterable[str], rows: Int) -> Bools:
        """Return (rows, places): whether the card is one of `uuids`."""
        marked = np.zeros(self._rows.table.model.shape, np.bool_, order="F")
        for uuid in map(GpuUuid, uuids):
            place = self._rows.places.get(uuid)
            if place is not None:
                marked[place] = True
            if uuid in self._rows.not_unique:
                for row, cards in enumerate(self._rows.uuids):
                    marked[row, : len(cards)] |= [card == uuid for card in cards]
        return marked[rows]

    def chosen(self, written: Iterable[str], rows: Int) -> Bools:
        """Return (rows, places): whether a pod's annotation names the card, by id or uuid."""
        written = set(written)
        marked = self.marks(written, rows)
        if not written.isdisjoint(self._rows.ids_of_nodes):
            for at, row in enumerate(rows.tolist()):
                cards = self._rows.uuids[row]
                marked[at, : len(cards)] |= [card_id(card) in written for card in cards]
        return marked

    def ranks(self, rows: Int) -> Int:
        """Return the rows' positions in the order of node names, which breaks ties."""
        return self._offered.ranks(rows)

    def scores(self, rows: Int) -> Floats:
        """Return the usage of the rows' nodes, 0 (idle) to 30 (full), as in HAMi (protocol 4.6).

        All cards of all vendors count; a node where one of the capacities is 0 scores 0.
        """
        totals = self._rows.totals[rows].astype(np.float32)
        used = self._rows.used[rows].astype(np.float32)
        shares = np.divide(used, totals, out=np.zeros_like(used), where=totals != 0)
        scores: Floats = _SCORE_WEIGHT * (shares[:, 0] + shares[:, 1] + shares[:, 2])
        scores[(totals == 0).any(axis=1)] = 0
        return scores


class OfferedRows:
    """Find the rows of a list of nodes, caching the result per list."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._asked: tuple[tuple[tuple[NodeName, ...], int], tuple[Int, tuple[NodeName, ...]]] = (
            ((), -1),
            (np.zeros(0, np.int64), ()),
        )
        self._ranks: Int | None = None

    def nodes_changed(self) -> None:
        """Forget cached results, because a node came or went."""
        self._ranks = None

    def rows_of(
        self, nodes: Collection[NodeName] | None, inventory_version: int
    ) -> tuple[Int, tuple[NodeName, ...]]:
        """Return the rows of nodes, cached for one version of the inventory.

        See `ClusterView.rows_of`.
        """
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
        """Return the rows' positions in the order of node names."""
        if self._ranks is None:
            order = sorted(range(len(self._rows.names)), key=self._rows.names.__getitem__)
            self._ranks = np.empty(len(order), np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks[rows]
