"""The whole cluster's cards as arrays, kept up to date incrementally.

The scheduler builds one from the ledger, applies every counter change that the bus brings
(`apply`, only a higher version counts), and hands it to `place.place`. Not thread safe: one event
loop owns it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.placement.cards import NO_MODEL, Bools, Cards, Floats, Int, Model
from hamicommon.placement.rules import Rule

_SCORE_WEIGHT = np.float32(10)
"""HAMi's factor of each share in a node's score."""


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
    """All cards of the cluster, grouped by node; rows 0..len(nodes)-1 are in use."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self.inventory_version = 0
        """Grows with every change but of counters."""
        self.models: list[Model] = [Model("", "", "")]
        """Distinct kinds of cards ever seen; index 0 stands for an empty place."""
        self._table = Cards.empty(0, 1)
        self._versions = np.zeros((0, 1), np.int64)
        self._totals = np.zeros((0, 3), np.int64)
        self._used = np.zeros((0, 3), np.int64)
        self._names: list[NodeName] = []
        self._usages: list[tuple[DeviceUsage, ...]] = []
        self._uuids: list[tuple[GpuUuid, ...]] = []
        self._pairs: list[Int | None] = []
        self._rows: dict[NodeName, int] = {}
        self._places: dict[GpuUuid, tuple[int, int]] = {}
        self._model_ids: dict[Model, int] = {}
        self._ranks: Int | None = None
        self._known: tuple[tuple[NodeName, ...], tuple[tuple[DeviceUsage, ...], ...]] | None = None
        """Names and usages as tuples, made once per inventory version."""

    @property
    def nodes(self) -> Collection[NodeName]:
        """Names of all known nodes, in no particular order."""
        return self._rows.keys()

    def set_node(
        self,
        node: NodeName,
        cards: Sequence[CardState],
        *,
        pair_scores: Mapping[GpuUuid, Mapping[GpuUuid, int]] | None = None,
    ) -> None:
        """Puts a node's cards in place of what was known of it.

        A card's counters are kept where a higher version of them was already applied.
        """
        known = {state.usage.device.uuid: state for state in self.cards(node)}
        newest = [_newest(state, known.get(state.usage.device.uuid)) for state in cards]
        row = self._rows.get(node)
        if row is None:
            row = self._append(node)
        else:
            self._forget_places(row)
        self._make_room(len(self._names), len(newest))
        self._write(row, newest)
        self._pairs[row] = self._pair_matrix(self._usages[row], pair_scores or {})
        self.version += 1
        self._inventory_changed()

    def remove_node(self, node: NodeName) -> None:
        """Forgets a node and its cards, if it is known."""
        row = self._rows.pop(node, None)
        if row is None:
            return
        self._forget_places(row)
        last = len(self._names) - 1
        if row != last:
            # The last row moves into the gap, so that rows in use stay dense.
            states, moved = self.cards(self._names[last]), self._names[last]
            self._names[row], self._pairs[row] = moved, self._pairs[last]
            self._rows[moved] = row
            self._write(row, states)
        for rows in (self._names, self._usages, self._uuids, self._pairs):
            rows.pop()
        self._write_row(last, ())
        self._ranks = None
        self.version += 1
        self._inventory_changed()

    def apply(
        self, uuid: GpuUuid, *, slots: int, memory_mib: int, core_percent: int, version: int
    ) -> bool:
        """Sets a card's absolute counters; False when they are not newer or the card is unknown."""
        place = self._places.get(uuid)
        if place is None or version <= self._versions[place]:
            return False
        table = self._table
        old = (table.used_slots[place], table.used_core[place], table.used_memory[place])
        table.used_slots[place] = slots
        table.used_core[place] = core_percent
        table.used_memory[place] = memory_mib
        self._used[place[0]] += np.subtract((slots, core_percent, memory_mib), old)
        self._versions[place] = version
        self.version += 1
        return True

    def cards(self, node: NodeName) -> tuple[CardState, ...]:
        """The node's cards in their order; empty when it is not known."""
        row = self._rows.get(node)
        if row is None:
            return ()
        table, versions = self._table, self._versions
        return tuple(
            CardState(
                replace(
                    usage,
                    used_slots=int(table.used_slots[row, column]),
                    used_memory_mib=int(table.used_memory[row, column]),
                    used_core_percent=int(table.used_core[row, column]),
                ),
                int(versions[row, column]),
            )
            for column, usage in enumerate(self._usages[row])
        )

    def frozen(self, nodes: Collection[NodeName] | None = None) -> Frozen:
        """What it knows now, for the record of a decision: all cards, counters of some nodes.

        Copies counters only; `nodes` None means all, and unknown ones are left out.
        """
        if self._known is None:
            self._known = (tuple(self._names), tuple(self._usages))
        names, usages = self._known
        if nodes is None:
            rows: Sequence[int] = range(len(names))
        else:
            rows = [self._rows[node] for node in nodes if node in self._rows]
        table = self._table
        columns = (table.used_slots, table.used_memory, table.used_core)
        where = slice(0, len(names)) if nodes is None else np.array(rows, np.int64)
        return Frozen(
            version=self.version,
            inventory_version=self.inventory_version,
            names=names,
            usages=usages,
            rows=tuple(rows),
            used=np.stack([column[where] for column in columns], axis=-1).astype(np.int32),
        )

    def rows_of(self, nodes: Collection[NodeName] | None) -> tuple[Int, tuple[NodeName, ...]]:
        """Rows of the given nodes (None: all), and those that are unknown or have no card."""
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

    def pairs(self, row: int) -> Int | None:
        """Pair scores (places, places) of a row, or None when the node told none."""
        return self._pairs[row]

    def marks(self, uuids: Iterable[str], rows: Int) -> Bools:
        """(rows, places): True where the card is one of `uuids`."""
        marked = np.zeros(self._table.model.shape, np.bool_)
        for uuid in uuids:
            place = self._places.get(GpuUuid(uuid))
            if place is not None:
                marked[place] = True
        return marked[rows]

    def ranks(self, rows: Int) -> Int:
        """Position of the rows' nodes in the order of names: the key that breaks ties."""
        if self._ranks is None:
            order = sorted(range(len(self._names)), key=self._names.__getitem__)
            self._ranks = np.empty(len(order), np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks[rows]

    def scores(self, rows: Int) -> Floats:
        """Usage of the rows' nodes, 0 (idle) to 30 (full), as HAMi computes it (sheet 4.6)."""
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
        self._uuids.append(())
        self._pairs.append(None)
        self._ranks = None
        return row

    def _make_room(self, rows: int, places: int) -> None:
        height, width = self._table.model.shape
        if rows <= height and places <= width:
            return
        # Doubling the rows keeps the cost of adding n nodes linear.
        height, old = (max(2 * height, rows) if rows > height else height), (height, width)
        width = max(width, places)
        self._table = self._table.resized(height, width)
        versions, totals, used = self._versions, self._totals, self._used
        self._versions = np.zeros((height, width), np.int64)
        self._versions[: old[0], : old[1]] = versions
        self._totals, self._used = np.zeros((height, 3), np.int64), np.zeros((height, 3), np.int64)
        self._totals[: old[0]], self._used[: old[0]] = totals, used

    def _write(self, row: int, states: Sequence[CardState]) -> None:
        self._write_row(row, states)
        self._usages[row] = tuple(state.usage for state in states)
        self._uuids[row] = tuple(state.usage.device.uuid for state in states)
        for column, uuid in enumerate(self._uuids[row]):
            self._places[uuid] = (row, column)

    def _write_row(self, row: int, states: Sequence[CardState]) -> None:
        table, usages = self._table, [state.usage for state in states]
        columns = {
            "model": [self._model_id(usage.device) for usage in usages],
            "status": [_status(usage) for usage in usages],
            "slots": [usage.device.slots for usage in usages],
            "memory": [usage.device.memory_mib for usage in usages],
            "core": [usage.device.core_percent for usage in usages],
            "used_slots": [usage.used_slots for usage in usages],
            "used_memory": [usage.used_memory_mib for usage in usages],
            "used_core": [usage.used_core_percent for usage in usages],
            "numa": [usage.device.numa for usage in usages],
            "index": [usage.device.index for usage in usages],
        }
        for name, values in columns.items():
            column = getattr(table, name)
            column[row] = 0
            column[row, : len(usages)] = values
        self._versions[row] = 0
        self._versions[row, : len(usages)] = [state.version for state in states]
        for sums, prefix in ((self._totals, ""), (self._used, "used_")):
            sums[row] = [getattr(table, prefix + x)[row].sum() for x in ("slots", "core", "memory")]

    def _model_id(self, device: GpuDevice) -> int:
        model = Model(device.vendor, device.type, device.mode)
        if model not in self._model_ids:
            self._model_ids[model] = len(self.models)
            self.models.append(model)
        return self._model_ids[model]

    def _forget_places(self, row: int) -> None:
        for uuid in self._uuids[row]:
            # A card that was moved to another node is known there already.
            if self._places.get(uuid, (-1, -1))[0] == row:
                del self._places[uuid]

    def _pair_matrix(
        self,
        usages: Sequence[DeviceUsage],
        scores: Mapping[GpuUuid, Mapping[GpuUuid, int]],
    ) -> Int | None:
        if not scores:
            return None
        uuids = [usage.device.uuid for usage in usages]
        return np.array([[scores.get(a, {}).get(b, 0) for b in uuids] for a in uuids], np.int64)


def _newest(given: CardState, known: CardState | None) -> CardState:
    """`given`, with the counters that are known when those are of a higher version."""
    if known is None or known.version <= given.version:
        return given
    usage = replace(
        given.usage,
        used_slots=known.usage.used_slots,
        used_memory_mib=known.usage.used_memory_mib,
        used_core_percent=known.usage.used_core_percent,
    )
    return CardState(usage, known.version)


def _status(usage: DeviceUsage) -> Rule:
    if not usage.device.healthy:
        return Rule.NOT_HEALTHY
    return Rule.CORDONED if usage.cordoned else Rule.FITS
