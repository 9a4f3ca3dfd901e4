"""Storage of the cluster view: a row of cards per node, with sums.

Rows 0..len(names)-1 are in use and dense; the last row replaces that of a removed node. Only
`view.ClusterView` writes them; it knows their meaning for the engine.

Kinds of cards and nodes have numbers, so that a rule about a kind is evaluated once. A model is a
card without its individual values (`cards.model_of`); a make-up is the sequence of models on a
node. Uses of both are counted, so that kinds which no longer exist in the cluster do not stay in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, card_id
from hamicommon.placement.cluster.cards import Cards, Int, model_of
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import PairScores

K = TypeVar("K", bound=Hashable)


class Kinds(Generic[K]):
    """Numbers for distinct values, from 1; unused numbers are given out again."""

    def __init__(self) -> None:
        self.by_number: list[K | None] = [None]
        """None where the number is not in use; 0 never is."""
        self._numbers: dict[K, int] = {}
        self._uses: list[int] = [0]
        self._free: list[int] = []

    def hold(self, value: K) -> int:
        """Return the number of `value`, counting one more use."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = self._new(value)
        self._uses[number] += 1
        return number

    def release(self, number: int) -> None:
        """Count one use less."""
        self._uses[number] -= 1
        if self._uses[number] == 0:
            value = self.by_number[number]
            assert value is not None
            del self._numbers[value]
            self.by_number[number] = None
            self._free.append(number)

    def _new(self, value: K) -> int:
        if self._free:
            number = self._free.pop()
            self.by_number[number] = value
            return number
        self.by_number.append(value)
        self._uses.append(0)
        return len(self.by_number) - 1


NO_PAIRS: PairScores = {}


class CardState(NamedTuple):
    """Card with granted amounts, and the version of these in the ledger."""

    usage: DeviceUsage
    version: int


class Rows:
    """Rows of cards; `status_of` returns FITS, NOT_HEALTHY or CORDONED for a card."""

    def __init__(self, status_of: Callable[[DeviceUsage], Rule]) -> None:
        self._status_of = status_of
        self.models: Kinds[GpuDevice] = Kinds()
        self.makeups: Kinds[tuple[int, ...]] = Kinds()
        self.table = Cards.empty(0, 1)
        self.totals = np.zeros((0, 3), np.int64)
        """(rows, 3): slots, cores and MiB of a node's cards."""
        self.used = np.zeros((0, 3), np.int64)
        """The same of their grants."""
        self.makeup = np.zeros(0, np.int64)
        """(rows,): number of the sequence of models, in `makeups`."""
        self.changed = np.zeros(0, np.int64)
        """(rows,): grows with every change of a row; no two changes have the same number."""
        self.names: list[NodeName] = []
        self.usages: list[tuple[DeviceUsage, ...]] = []
        self.versions: list[list[int]] = []
        self.uuids: list[tuple[GpuUuid, ...]] = []
        self.pairs: list[PairScores] = []
        self.of_node: dict[NodeName, int] = {}
        self.places: dict[GpuUuid, tuple[int, int]] = {}
        """Row and place of every card."""
        self.not_unique: set[GpuUuid] = set()
        """Uuids that several nodes had at one time: only in dumps and cases that people write."""
        self.ids_of_nodes: set[str] = set()
        """Ids of cards that are unique on their node only, as pods' annotations name them."""
        self._changes = 0

    def copy(self, status_of: Callable[[DeviceUsage], Rule]) -> Rows:
        """Return a copy that changes of this one don't reach."""
        twin = copy(self)
        twin._status_of = status_of
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | list | dict | set):
                setattr(twin, name, value.copy())
        twin.versions = [list(each) for each in self.versions]
        twin.table = self.table.resized_copy(*self.table.model.shape)
        twin.models, twin.makeups = deepcopy(self.models), deepcopy(self.makeups)
        return twin

    def append(self, node: NodeName) -> int:
        """Add a row for a new node; the caller must `write` it next."""
        row = len(self.names)
        self.of_node[node] = row
        self.names.append(node)
        self.usages.append(())
        self.versions.append([])
        self.uuids.append(())
        self.pairs.append(NO_PAIRS)
        return row

    def write(self, row: int, states: Sequence[CardState], pairs: PairScores) -> None:
        """Write cards to a row whose previous content was forgotten."""
        self._make_room(len(self.names), len(states))
        usages = [state.usage for state in states]
        models = tuple(self.models.hold(model_of(usage.device)) for usage in usages)
        columns = {
            "model": models,
            "status": [self._status_of(usage) for usage in usages],
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
            column = getattr(self.table, name)
            column[row] = 0
            column[row, : len(usages)] = values
        self.totals[row] = [sum(columns[name]) for name in ("slots", "core", "memory")]
        free = [sum(columns["free_" + name]) for name in ("slots", "core", "memory")]
        self.used[row] = self.totals[row] - free
        self.makeup[row] = self.makeups.hold(models)
        self.usages[row] = tuple(usages)
        self.versions[row] = [state.version for state in states]
        self.uuids[row] = tuple(usage.device.uuid for usage in usages)
        self.pairs[row] = pairs
        for place, uuid in enumerate(self.uuids[row]):
            if self.places.get(uuid, (row, 0))[0] != row:
                self.not_unique.add(uuid)
            self.places[uuid] = (row, place)
            if card_id(uuid) != uuid:
                self.ids_of_nodes.add(card_id(uuid))
        self.touch(row)

    def holds(self, row: int, states: Sequence[CardState], pairs: PairScores) -> bool:
        """Return whether the row has these cards, ignoring counters."""
        usages = self.usages[row]
        return (
            len(usages) == len(states)
            and self.pairs[row] == pairs
            and all(
                (old.device, old.cordoned, old.holdings) == (new.device, new.cordoned, new.holdings)
                for old, (new, _) in zip(usages, states, strict=True)
            )
        )

    def count(
        self,
        row: int,
        place: int,
        *,
        slots: int,
        memory_mib: int,
        core_percent: int,
        holdings: Sequence[Mapping[str, Any]] | None,
        version: int,
    ) -> bool:
        """Set one card's counters; return True if its holdings changed (None leaves them)."""
        table, usage = self.table, self.usages[row][place]
        table.free_slots[row, place] = usage.device.slots - slots
        table.free_memory[row, place] = usage.device.memory_mib - memory_mib
        table.free_core[row, place] = usage.device.core_percent - core_percent
        self.used[row] += (
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
        cards = self.usages[row]
        self.usages[row] = (*cards[:place], changed, *cards[place + 1 :])
        self.versions[row][place] = version
        table.status[row, place] = self._status_of(changed)
        self.touch(row)
        return changed.holdings != usage.holdings

    def forget(self, row: int) -> None:
        """Release what the row's cards use; the caller must write or drop the row next."""
        makeup = int(self.makeup[row])
        for model in self.makeups.by_number[makeup] or ():
            self.models.release(model)
        self.makeups.release(makeup)
        for uuid in self.uuids[row]:
            # A card that was moved to another node is known there already.
            if self.places.get(uuid, (-1, -1))[0] == row:
                del self.places[uuid]

    def drop(self, row: int) -> None:
        """Remove a forgotten row; the last row moves into its place."""
        del self.of_node[self.names[row]]
        last = len(self.names) - 1
        if row != last:
            self._move(last, row)
        for cells in self._lists():
            cells.pop()
        for column in self._columns():
            column[last] = 0

    def _move(self, source: int, target: int) -> None:
        for cells in self._lists():
            cells[target] = cells[source]
        for column in self._columns():
            column[target] = column[source]
        self.of_node[self.names[target]] = target
        for place, uuid in enumerate(self.uuids[target]):
            if self.places.get(uuid) == (source, place):
                self.places[uuid] = (target, place)
        self.touch(target)

    def _lists(self) -> tuple[list[Any], ...]:
        return self.names, self.usages, self.versions, self.uuids, self.pairs

    def _columns(self) -> list[Any]:
        of_cards = [getattr(self.table, name) for name in Cards.__slots__]
        return [*of_cards, self.totals, self.used, self.makeup, self.changed]

    def touch(self, row: int) -> None:
        """Increase the row's version, which invalidates cached results."""
        self._changes += 1
        self.changed[row] = self._changes

    def _make_room(self, rows: int, places: int) -> None:
        height, width = self.table.model.shape
        if rows <= height and places <= width:
            return
        # Doubling the rows keeps the cost of adding n nodes linear.
        old, height = height, (max(2 * height, rows) if rows > height else height)
        self.table = self.table.resized_copy(height, max(width, places))
        self.totals = _grow(self.totals, old, height)
        self.used = _grow(self.used, old, height)
        self.makeup = _grow(self.makeup, old, height)
        self.changed = _grow(self.changed, old, height)


def _grow(column: Int, rows: int, height: int) -> Int:
    grown = np.zeros((height, *column.shape[1:]), np.int64)
    grown[:rows] = column
    return grown


def newest(given: CardState, known: CardState | None) -> CardState:
    """Return `given` with the known counters and holdings where their version is higher."""
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
