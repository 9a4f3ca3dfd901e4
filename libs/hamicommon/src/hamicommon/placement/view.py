"""The whole cluster's cards as arrays, kept up to date incrementally.

The scheduler builds one from the ledger, applies every counter change that the bus brings
(`apply`, only a higher version counts), and hands it to `place.place`. Not thread safe: one event
loop owns it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.placement.cards import NO_MODEL, Bools, Cards, Floats, Int, model_of
from hamicommon.placement.kinds import Kinds
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_rules import PairScores, VendorRules

_SCORE_WEIGHT = np.float32(10)
"""HAMi's factor of each share in a node's score."""

_STANDARD = VendorRules()
_NO_PAIRS: PairScores = {}


class CardState(NamedTuple):
    """A card with what is granted on it, and the version of that count in the ledger."""

    usage: DeviceUsage
    version: int


class Frozen(NamedTuple):
    """What a view knew at one moment; later changes of the view leave it as it is."""

    version: int
    """`ClusterView.version` then."""
    inventory_version: int
    """Equal for moments between which no node's cards were written, only counters."""
    names: tuple[NodeName, ...]
    """All nodes, in no particular order."""
    usages: tuple[tuple[DeviceUsage, ...], ...]
    """Per node, its cards by place; their own `used_*` may be older than `used`."""
    rows: tuple[int, ...]
    """Which of the nodes `used` tells of, as positions in `names`."""
    used: npt.NDArray[np.int32]
    """(rows, places, 3): used slots, MiB and percent of every card."""


class ClusterView:
    """All cards of the cluster, grouped by node; rows 0..len(nodes)-1 are in use.

    `rules` says by vendor word how its cards are judged; an absent word has the standard rules.
    """

    def __init__(self, rules: Mapping[str, VendorRules] | None = None) -> None:
        self.version = 0
        """Grows with every change."""
        self.inventory_version = 0
        """Grows with every change but of counters."""
        self._asked: tuple[tuple[tuple[NodeName, ...], int], tuple[Int, tuple[NodeName, ...]]] = (
            ((), -1),
            (np.zeros(0, np.int64), ()),
        )
        self._rules = dict(rules or {})
        self._models: Kinds[GpuDevice] = Kinds()
        self._makeups: Kinds[tuple[int, ...]] = Kinds()
        self._table = Cards.empty(0, 1)
        self._totals = np.zeros((0, 3), np.int64)
        self._used = np.zeros((0, 3), np.int64)
        self._makeup = np.zeros(0, np.int64)
        self._names: list[NodeName] = []
        self._usages: list[tuple[DeviceUsage, ...]] = []
        self._versions: list[list[int]] = []
        self._uuids: list[tuple[GpuUuid, ...]] = []
        self._pairs: list[PairScores] = []
        self._rows: dict[NodeName, int] = {}
        self._places: dict[GpuUuid, tuple[int, int]] = {}
        self._not_unique: set[GpuUuid] = set()
        """Uuids that several nodes had at one time: only in dumps and cases that people write."""
        self._ranks: Int | None = None
        self._known: tuple[tuple[NodeName, ...], tuple[tuple[DeviceUsage, ...], ...]] | None = None
        """Names and usages as tuples, made once per inventory version."""

    @property
    def nodes(self) -> Collection[NodeName]:
        """Names of all known nodes, in no particular order."""
        return self._rows.keys()

    @property
    def models(self) -> Sequence[GpuDevice | None]:
        """Distinct kinds of cards by number (`Cards.model`); index 0 stands for an empty place."""
        return self._models.by_number

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
        newest = [_newest(state, known.get(state.usage.device.uuid)) for state in cards]
        row = self._rows.get(node)
        if row is None:
            row = self._append(node)
        else:
            self._forget(row)
        self._make_room(len(self._names), len(newest))
        self._write(row, newest)
        self._pairs[row] = pair_scores or _NO_PAIRS
        self.version += 1
        self._inventory_changed()

    def remove_node(self, node: NodeName) -> None:
        """Forgets a node and its cards, if it is known."""
        row = self._rows.pop(node, None)
        if row is None:
            return
        self._forget(row)
        last = len(self._names) - 1
        if row != last:
            self._move(last, row)
        for rows in (self._names, self._usages, self._versions, self._uuids, self._pairs):
            rows.pop()
        self._clear(last)
        self._ranks = None
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
        place = self._places.get(uuid)
        if place is None:
            return False
        row, column = place
        if version <= self._versions[row][column]:
            return False
        table, usage = self._table, self._usages[row][column]
        table.free_slots[place] = usage.device.slots - slots
        table.free_memory[place] = usage.device.memory_mib - memory_mib
        table.free_core[place] = usage.device.core_percent - core_percent
        self._used[row] += (
            slots - usage.used_slots,
            core_percent - usage.used_core_percent,
            memory_mib - usage.used_memory_mib,
        )
        changed = replace(
            usage,
            used_slots=slots,
            used_memory_mib=memory_mib,
            used_core_percent=core_percent,
            holdings=usage.holdings if holdings is None else tuple(holdings),
        )
        cards = self._usages[row]
        self._usages[row] = (*cards[:column], changed, *cards[column + 1 :])
        self._versions[row][column] = version
        table.status[place] = self._status(changed)
        self.version += 1
        if changed.holdings != usage.holdings:
            self._inventory_changed()
        return True

    def cards(self, node: NodeName) -> tuple[CardState, ...]:
        """The node's cards in their order; empty when it is not known."""
        row = self._rows.get(node)
        if row is None:
            return ()
        return tuple(map(CardState, self._usages[row], self._versions[row]))

    def frozen(self, nodes: Collection[NodeName] | None = None) -> Frozen:
        """What it knows now, for the record of a decision: all cards, counters of some nodes.

        Copies counters only; `nodes` None means all, and unknown ones are left out.
        """
        names, usages = self._as_tuples()
        if nodes is None:
            rows: Sequence[int] = range(len(names))
        else:
            rows = [self._rows[node] for node in nodes if node in self._rows]
        table = self._table
        where = slice(0, len(names)) if nodes is None else np.array(rows, np.int64)
        columns = (
            table.slots[where] - table.free_slots[where],
            table.memory[where] - table.free_memory[where],
            table.core[where] - table.free_core[where],
        )
        return Frozen(
            version=self.version,
            inventory_version=self.inventory_version,
            names=names,
            usages=usages,
            rows=tuple(rows),
            used=np.stack(columns, axis=-1).astype(np.int32),
        )

    def _as_tuples(self) -> tuple[tuple[NodeName, ...], tuple[tuple[DeviceUsage, ...], ...]]:
        if self._known is None:
            self._known = (tuple(self._names), tuple(self._usages))
        return self._known

    def names_by_row(self) -> tuple[NodeName, ...]:
        """All nodes, by row; stays as it is when the view changes."""
        return self._as_tuples()[0]

    def rows_of(self, nodes: Collection[NodeName] | None) -> tuple[Int, tuple[NodeName, ...]]:
        """Rows of the given nodes (None: all), and those that are unknown or have no card.

        The answer for a tuple is remembered: a caller that offers the same nodes again, as
        kube-scheduler does pod after pod, hands in the same tuple.
        """
        if not isinstance(nodes, tuple):
            return self._find_rows(nodes)
        key, answer = self._asked
        if key[0] is not nodes or key[1] != self.inventory_version:
            answer = self._find_rows(nodes)
            answer[0].flags.writeable = False
            self._asked = (nodes, self.inventory_version), answer
        return answer

    def _find_rows(self, nodes: Collection[NodeName] | None) -> tuple[Int, tuple[NodeName, ...]]:
        if nodes is None:
            nodes = self._names
        wanted = dict.fromkeys(nodes)
        rows = np.fromiter(map(self._rows.get, wanted, repeat(-1)), np.int64, len(wanted))
        known = rows >= 0
        # A node's cards are written from place 0 on.
        known[known] = self._table.model[rows[known], 0] != NO_MODEL
        if known.all():
            return rows, ()
        return rows[known], tuple(name for name, yes in zip(wanted, known, strict=True) if not yes)

    def table(self, rows: Int) -> Cards:
        """The cards of the given rows; shares memory with the view when `rows` are all rows."""
        count = len(self._names)
        if len(rows) == count and np.array_equal(rows, np.arange(count)):
            return self._table.take(slice(0, count))
        return self._table.take(rows)

    def name(self, row: int) -> NodeName:
        """The node of a row."""
        return self._names[row]

    def names(self, rows: Int) -> tuple[NodeName, ...]:
        """The nodes of the given rows."""
        return tuple(map(self._names.__getitem__, rows.tolist()))

    def uuids(self, row: int) -> tuple[GpuUuid, ...]:
        """The cards of a row, by place."""
        return self._uuids[row]

    def usages(self, row: int) -> Sequence[DeviceUsage]:
        """The cards of a row with what is granted on them, by place."""
        return self._usages[row]

    def pairs(self, row: int) -> PairScores:
        """How well the row's cards are connected; empty when the node told none."""
        return self._pairs[row]

    def pair_matrix(self, row: int) -> Int | None:
        """The same by place, (places, places); None when the node told none."""
        scores, uuids = self._pairs[row], self._uuids[row]
        if not scores:
            return None
        return np.array([[scores.get(a, {}).get(b, 0) for b in uuids] for a in uuids], np.int64)

    def makeups(self, rows: Int) -> Int:
        """A number per row: rows of one number have the same models at the same places."""
        return self._makeup[rows]

    def models_of(self, makeup: int) -> tuple[GpuDevice, ...]:
        """The models of a node of that make-up, by place."""
        models = map(self._models.by_number.__getitem__, self._makeups.by_number[makeup] or ())
        return tuple(model for model in models if model is not None)

    def marks(self, uuids: Iterable[str], rows: Int) -> Bools:
        """(rows, places): True where the card is one of `uuids`."""
        marked = np.zeros(self._table.model.shape, np.bool_, order="F")
        for uuid in map(GpuUuid, uuids):
            place = self._places.get(uuid)
            if place is not None:
                marked[place] = True
            if uuid in self._not_unique:
                for row, cards in enumerate(self._uuids):
                    marked[row, : len(cards)] |= [card == uuid for card in cards]
        return marked[rows]

    def ranks(self, rows: Int) -> Int:
        """Position of the rows' nodes in the order of names: the key that breaks ties."""
        if self._ranks is None:
            order = sorted(range(len(self._names)), key=self._names.__getitem__)
            self._ranks = np.empty(len(order), np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks[rows]

    def scores(self, rows: Int) -> Floats:
        """Usage of the rows' nodes, 0 (idle) to 30 (full), as HAMi computes it (sheet 4.6).

        All cards of all vendors count; a node where one of the capacities is 0 scores 0.
        """
        totals = self._totals[rows].astype(np.float32)
        used = self._used[rows].astype(np.float32)
        shares = np.divide(used, totals, out=np.zeros_like(used), where=totals != 0)
        scores: Floats = _SCORE_WEIGHT * (shares[:, 0] + shares[:, 1] + shares[:, 2])
        scores[(totals == 0).any(axis=1)] = 0
        return scores

    def _inventory_changed(self) -> None:
        self.inventory_version += 1
        self._known = None

    def _append(self, node: NodeName) -> int:
        row = len(self._names)
        self._rows[node] = row
        self._names.append(node)
        self._usages.append(())
        self._versions.append([])
        self._uuids.append(())
        self._pairs.append(_NO_PAIRS)
        self._ranks = None
        return row

    def _make_room(self, rows: int, places: int) -> None:
        height, width = self._table.model.shape
        if rows <= height and places <= width:
            return
        # Doubling the rows keeps the cost of adding n nodes linear.
        old, height = height, (max(2 * height, rows) if rows > height else height)
        self._table = self._table.resized(height, max(width, places))
        for name in ("_totals", "_used", "_makeup"):
            sums = getattr(self, name)
            grown = np.zeros((height, *sums.shape[1:]), np.int64)
            grown[:old] = sums
            setattr(self, name, grown)

    def _write(self, row: int, states: Sequence[CardState]) -> None:
        usages = [state.usage for state in states]
        models = tuple(self._models.hold(model_of(usage.device)) for usage in usages)
        columns = {
            "model": models,
            "status": [self._status(usage) for usage in usages],
            "slots": [usage.device.slots for usage in usages],
            "memory": [usage.device.memory_mib for usage in usages],
            "core": [usage.device.core_percent for usage in usages],
            "free_slots": [usage.device.slots - usage.used_slots for usage in usages],
            "free_memory": [usage.free_memory_mib for usage in usages],
            "free_core": [usage.free_core_percent for usage in usages],
            "numa": [usage.device.numa for usage in usages],
            "index": [usage.device.index for usage in usages],
        }
        for name, values in columns.items():
            column = getattr(self._table, name)
            column[row] = 0
            column[row, : len(usages)] = values
        self._totals[row] = [sum(columns[name]) for name in ("slots", "core", "memory")]
        free = [sum(columns["free_" + name]) for name in ("slots", "core", "memory")]
        self._used[row] = self._totals[row] - free
        self._makeup[row] = self._makeups.hold(models)
        self._usages[row] = tuple(usages)
        self._versions[row] = [state.version for state in states]
        self._uuids[row] = tuple(usage.device.uuid for usage in usages)
        for column, uuid in enumerate(self._uuids[row]):
            if self._places.get(uuid, (row, 0))[0] != row:
                self._not_unique.add(uuid)
            self._places[uuid] = (row, column)

    def _status(self, usage: DeviceUsage) -> Rule:
        sound = self.rules(usage.device.vendor).sound
        if not usage.device.healthy or (sound is not None and not sound(usage)):
            return Rule.NOT_HEALTHY
        return Rule.CORDONED if usage.cordoned else Rule.FITS

    def _forget(self, row: int) -> None:
        """Lets go of what the row's cards hold; the row itself is written or cleared next."""
        makeup = int(self._makeup[row])
        for model in self._makeups.by_number[makeup] or ():
            self._models.release(model)
        self._makeups.release(makeup)
        for uuid in self._uuids[row]:
            # A card that was moved to another node is known there already.
            if self._places.get(uuid, (-1, -1))[0] == row:
                del self._places[uuid]

    def _move(self, source: int, target: int) -> None:
        """Moves a row into a gap, so that rows in use stay dense."""
        self._names[target] = self._names[source]
        self._usages[target] = self._usages[source]
        self._versions[target] = self._versions[source]
        self._uuids[target] = self._uuids[source]
        self._pairs[target] = self._pairs[source]
        for name in Cards.__slots__:
            column = getattr(self._table, name)
            column[target] = column[source]
        for sums in (self._totals, self._used, self._makeup):
            sums[target] = sums[source]
        self._rows[self._names[target]] = target
        for column, uuid in enumerate(self._uuids[target]):
            if self._places.get(uuid) == (source, column):
                self._places[uuid] = (target, column)

    def _clear(self, row: int) -> None:
        for name in Cards.__slots__:
            getattr(self._table, name)[row] = 0
        for sums in (self._totals, self._used, self._makeup):
            sums[row] = 0


def _newest(given: CardState, known: CardState | None) -> CardState:
    """`given`, with the counters and holdings that are known when those are of a higher version."""
    if known is None or known.version <= given.version:
        return given
    usage = replace(
        given.usage,
        used_slots=known.usage.used_slots,
        used_memory_mib=known.usage.used_memory_mib,
        used_core_percent=known.usage.used_core_percent,
        holdings=known.usage.holdings,
    )
    return CardState(usage, known.version)
