"""The whole cluster's cards as arrays, kept up to date incrementally.

The scheduler builds one from the ledger, applies every counter change that the bus brings
(`apply`, only a higher version counts), and hands it to `place.place`. Not thread safe: one event
loop owns it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.placement.cluster.arrivals import UsualPods
from hamicommon.placement.cluster.cache import Memory
from hamicommon.placement.cluster.cards import Bools, Cards, Floats, Int
from hamicommon.placement.cluster.free_cpu import FreeCpu
from hamicommon.placement.cluster.offered import OfferedRows
from hamicommon.placement.cluster.rows import NO_PAIRS, CardState, Rows, newest
from hamicommon.placement.cluster.snapshot import Frozen, used_of
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import PairScores, VendorRules

__all__ = ["CardState", "ClusterView", "Frozen"]

_SCORE_WEIGHT = np.float32(10)
"""HAMi's factor of each share in a node's score."""

_STANDARD = VendorRules()


class ClusterView:
    """All cards of the cluster, grouped by node; rows 0..len(nodes)-1 are in use.

    `rules` has by vendor how its cards are judged; an absent one has the standard rules.
    """

    def __init__(self, rules: Mapping[str, VendorRules] | None = None) -> None:
        self.version = 0
        """Grows with every change."""
        self.inventory_version = 0
        """Grows with every change but of counters."""
        self.memory = Memory()
        """What nodes answered before; of use while they stay as they were."""
        self.usual = UsualPods()
        """Which pods come; the node policy `fragmentation` goes by them."""
        self._free_cpu = FreeCpu()
        self._rules = dict(rules or {})
        self._rows = Rows(self._status)
        self._offered = OfferedRows(self._rows)
        self._known: tuple[tuple[NodeName, ...], tuple[tuple[DeviceUsage, ...], ...]] | None = None
        """Names and usages as tuples, made once per inventory version."""

    @property
    def nodes(self) -> Collection[NodeName]:
        """Names of all known nodes, in no particular order."""
        return self._rows.of_node.keys()

    @property
    def models(self) -> Sequence[GpuDevice | None]:
        """Distinct kinds of cards by number (`Cards.model`); index 0 stands for an empty place."""
        return self._rows.models.by_number

    def rules(self, vendor: str) -> VendorRules:
        """How the vendor's cards are judged."""
        return self._rules.get(vendor, _STANDARD)

    def set_node(
        self,
        node: NodeName,
        cards: Sequence[CardState],
        *,
        pair_scores: PairScores | None = None,
    ) -> None:
        """Puts a node's cards in place of what was known of it.

        A card's counters and holdings are kept where a higher version was already applied.
        """
        known = {state.usage.device.uuid: state for state in self.cards(node)}
        cards = [newest(state, known.get(state.usage.device.uuid)) for state in cards]
        pairs = pair_scores or NO_PAIRS
        row = self._rows.of_node.get(node)
        # What is read again is mostly as it was, and all decisions on one inventory share a record.
        same = row is not None and self._rows.holds(row, cards, pairs)
        if row is None:
            row = self._rows.append(node)
            self._offered.nodes_changed()
        else:
            self._rows.forget(row)
        self._rows.write(row, cards, pairs)
        self.version += 1
        if not same:
            self._inventory_changed()

    def remove_node(self, node: NodeName) -> None:
        """Forgets a node and its cards, if it is known."""
        row = self._rows.of_node.get(node)
        if row is None:
            return
        self._rows.forget(row)
        self._rows.drop(row)
        self._offered.nodes_changed()
        self.version += 1
        self._inventory_changed()

    def apply(
        self,
        uuid: GpuUuid,
        *,
        slots: int,
        memory_mib: int,
        core_percent: int,
        version: int,
        holdings: Sequence[Mapping[str, Any]] | None = None,
    ) -> bool:
        """Sets a card's absolute counters; False when they are not newer or the card is unknown.

        `holdings` replace the card's whole list of them; None leaves it as it is.
        """
        where = self._rows.places.get(uuid)
        if where is None:
            return False
        row, place = where
        if version <= self._rows.versions[row][place]:
            return False
        holdings_changed = self._rows.count(
            row,
            place,
            slots=slots,
            memory_mib=memory_mib,
            core_percent=core_percent,
            holdings=holdings,
            version=version,
        )
        self.version += 1
        if holdings_changed:
            self._inventory_changed()
        return True

    def shift(self, uuid: GpuUuid, *, slots: int, memory_mib: int, core_percent: int) -> None:
        """Adds to a card's counters what the ledger does not count yet, or takes it back.

        The version stays; the next `apply` sets the counters without it. An unknown card has none.
        """
        where = self._rows.places.get(uuid)
        if where is None:
            return
        row, place = where
        usage = self._rows.usages[row][place]
        self._rows.count(
            row,
            place,
            slots=usage.used_slots + slots,
            memory_mib=usage.used_memory_mib + memory_mib,
            core_percent=usage.used_core_percent + core_percent,
            holdings=None,
            version=self._rows.versions[row][place],
        )
        self.version += 1

    def set_free_cpu(self, node: NodeName, free_cpu_milli: int | None) -> None:
        """What pods have not asked for of the host's CPU; None: it is not known.

        Only the node policy `fragmentation` looks at it: kube-scheduler grants it.
        """
        row = self._rows.of_node.get(node)
        if self._free_cpu.set(node, free_cpu_milli) and row is not None:
            self._rows.touch(row)

    def free_cpu(self, rows: Int) -> Int:
        """(rows,): thousandths of a core; `UNLIMITED_CPU` where it is not known."""
        return self._free_cpu.of(self._rows.names, rows)

    def cards(self, node: NodeName) -> tuple[CardState, ...]:
        """The node's cards in their order; empty when it is not known."""
        row = self._rows.of_node.get(node)
        if row is None:
            return ()
        return tuple(map(CardState, self._rows.usages[row], self._rows.versions[row]))

    def frozen(self, nodes: Collection[NodeName] | None = None) -> Frozen:
        """What it knows now, for the record of a decision: all cards, counters of some nodes.

        Copies counters only; `nodes` None means all, and unknown ones are left out.
        """
        names, usages = self._as_tuples()
        if nodes is None:
            rows: Sequence[int] = range(len(names))
        else:
            rows = [self._rows.of_node[node] for node in nodes if node in self._rows.of_node]
        where = slice(0, len(names)) if nodes is None else np.array(rows, np.int64)
        return Frozen(
            version=self.version,
            inventory_version=self.inventory_version,
            names=names,
            usages=usages,
            rows=tuple(rows),
            used=used_of(self._rows.table.take(where)),
        )

    def _as_tuples(self) -> tuple[tuple[NodeName, ...], tuple[tuple[DeviceUsage, ...], ...]]:
        if self._known is None:
            self._known = (tuple(self._rows.names), tuple(self._rows.usages))
        return self._known

    def names_by_row(self) -> tuple[NodeName, ...]:
        """All nodes, by row; stays as it is when the view changes."""
        return self._as_tuples()[0]

    def rows_of(self, nodes: Collection[NodeName] | None) -> tuple[Int, tuple[NodeName, ...]]:
        """Rows of the given nodes (None: all), and those that are unknown or have no card.

        The answer for a tuple is remembered: a caller that offers the same nodes again, as
        kube-scheduler does pod after pod, hands in the same tuple.
        """
        return self._offered.rows_of(nodes, self.inventory_version)

    def table(self, rows: Int) -> Cards:
        """The cards of the given rows; shares memory with the view when it is one row, or all."""
        if len(rows) == 1:
            # The row that a commit has changed: slices of the columns are made in no time.
            row = int(rows[0])
            return self._rows.table.take(slice(row, row + 1))
        count = len(self._rows.names)
        if len(rows) == count and np.array_equal(rows, np.arange(count)):
            return self._rows.table.take(slice(0, count))
        return self._rows.table.take(rows)

    def name(self, row: int) -> NodeName:
        """The node of a row."""
        return self._rows.names[row]

    def names(self, rows: Int) -> tuple[NodeName, ...]:
        """The nodes of the given rows."""
        return tuple(map(self._rows.names.__getitem__, rows.tolist()))

    def uuids(self, row: int) -> tuple[GpuUuid, ...]:
        """The cards of a row, by place."""
        return self._rows.uuids[row]

    def usages(self, row: int) -> Sequence[DeviceUsage]:
        """The cards of a row with what is granted on them, by place."""
        return self._rows.usages[row]

    def pairs(self, row: int) -> PairScores:
        """How well the row's cards are connected; empty when the node reported none."""
        return self._rows.pairs[row]

    def pair_matrix(self, row: int) -> Int | None:
        """The same by place, (places, places); None when the node reported none."""
        scores, uuids = self._rows.pairs[row], self._rows.uuids[row]
        if not scores:
            return None
        return np.array([[scores.get(a, {}).get(b, 0) for b in uuids] for a in uuids], np.int64)

    @property
    def room(self) -> int:
        """How many rows there are, those not in use included."""
        return len(self._rows.changed)

    @property
    def shape(self) -> tuple[int, int]:
        """`room`, and how many cards a row has place for."""
        rows, places = self._rows.table.model.shape
        return rows, places

    def changed(self, rows: Int | slice) -> Int:
        """A number per row that is another after every change of the row; of a slice no copy."""
        return self._rows.changed[rows]

    def makeups(self, rows: Int) -> Int:
        """A number per row: rows of one number have the same models at the same places."""
        return self._rows.makeup[rows]

    def models_of(self, makeup: int) -> tuple[GpuDevice, ...]:
        """The models of a node of that make-up, by place."""
        models = map(
            self._rows.models.by_number.__getitem__, self._rows.makeups.by_number[makeup] or ()
        )
        return tuple(model for model in models if model is not None)

    def marks(self, uuids: Iterable[str], rows: Int) -> Bools:
        """(rows, places): True where the card is one of `uuids`."""
        marked = np.zeros(self._rows.table.model.shape, np.bool_, order="F")
        for uuid in map(GpuUuid, uuids):
            place = self._rows.places.get(uuid)
            if place is not None:
                marked[place] = True
            if uuid in self._rows.not_unique:
                for row, cards in enumerate(self._rows.uuids):
                    marked[row, : len(cards)] |= [card == uuid for card in cards]
        return marked[rows]

    def ranks(self, rows: Int) -> Int:
        """Position of the rows' nodes in the order of names: the key that breaks ties."""
        return self._offered.ranks(rows)

    def scores(self, rows: Int) -> Floats:
        """Usage of the rows' nodes, 0 (idle) to 30 (full), as HAMi computes it (protocol 4.6).

        All cards of all vendors count; a node where one of the capacities is 0 scores 0.
        """
        totals = self._rows.totals[rows].astype(np.float32)
        used = self._rows.used[rows].astype(np.float32)
        shares = np.divide(used, totals, out=np.zeros_like(used), where=totals != 0)
        scores: Floats = _SCORE_WEIGHT * (shares[:, 0] + shares[:, 1] + shares[:, 2])
        scores[(totals == 0).any(axis=1)] = 0
        return scores

    def _inventory_changed(self) -> None:
        self.inventory_version += 1
        self._known = None

    def _status(self, usage: DeviceUsage) -> Rule:
        sound = self.rules(usage.device.vendor).sound
        if not usage.device.healthy or (sound is not None and not sound(usage)):
            return Rule.NOT_HEALTHY
        return Rule.CORDONED if usage.cordoned else Rule.FITS
