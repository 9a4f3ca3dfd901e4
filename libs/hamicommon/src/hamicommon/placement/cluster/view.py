"""All cards of the cluster as arrays, updated incrementally.

The scheduler builds one from the ledger, applies every counter change that the bus delivers
(`apply`, only a higher version counts), and passes it to `engine.place`. Not thread safe: one event
loop owns it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.placement.cluster.arrivals import UsualPods
from hamicommon.placement.cluster.by_row import CardsByRow, OfferedRows
from hamicommon.placement.cluster.cache import Memory
from hamicommon.placement.cluster.cards import Cards, Int
from hamicommon.placement.cluster.rows import NO_PAIRS, CardState, Rows, newest
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import PairScores, VendorRules


class Frozen(NamedTuple):
    """Immutable copy of a view at one moment.

    It is for the record of a decision (`explain/record.py` encodes it).
    """

    version: int
    """Version of the view at that moment."""
    inventory_version: int
    """Version of the inventory: equal if only counters differ."""
    names: tuple[NodeName, ...]
    """Names of all nodes, in no particular order."""
    usages: tuple[tuple[DeviceUsage, ...], ...]
    """Cards per node by place; `used` may be newer than their own `used_*`."""
    rows: tuple[int, ...]
    """Positions in `names` of the nodes that `used` is about."""
    used: npt.NDArray[np.int32]
    """(rows, places, 3): used slots, MiB and percent of every card."""


def used_of(cards: Cards) -> npt.NDArray[np.int32]:
    """Return (rows, places, 3): granted amounts of the cards, as in `Frozen.used`."""
    columns = (
        cards.slots - cards.free_slots,
        cards.memory - cards.free_memory,
        cards.core - cards.free_core,
    )
    return np.stack(columns, axis=-1).astype(np.int32)


__all__ = ["CardState", "ClusterView", "Frozen"]

_STANDARD = VendorRules()


class ClusterView(CardsByRow):
    """All cards of the cluster by node, in rows 0..len(nodes)-1.

    `rules` has by vendor how its cards are judged; an absent one has the standard rules.
    """

    def __init__(self, rules: Mapping[str, VendorRules] | None = None) -> None:
        super().__init__(Rows(self._status))
        self.version = 0
        """Grows with every change."""
        self.memory = Memory()
        """Earlier answers of nodes, valid until the node changes."""
        self.usual = UsualPods()
        """Mix of arriving pods, for the node policy `fragmentation`."""
        self._free_cpu = FreeCpu()
        self._rules = dict(rules or {})
        self._known: tuple[tuple[NodeName, ...], tuple[tuple[DeviceUsage, ...], ...]] | None = None
        """Names and usages as tuples, made once per inventory version."""

    def rules(self, vendor: str) -> VendorRules:
        """Return the vendor's rules for judging cards."""
        return self._rules.get(vendor, _STANDARD)

    def set_node(
        self,
        node: NodeName,
        cards: Sequence[CardState],
        *,
        pair_scores: PairScores | None = None,
    ) -> None:
        """Replace the known cards of a node.

        A card's counters and holdings are kept if a higher version was already applied.
        """
        known = {state.usage.device.uuid: state for state in self.cards(node)}
        cards = [newest(state, known.get(state.usage.device.uuid)) for state in cards]
        pairs = pair_scores or NO_PAIRS
        row = self._rows.of_node.get(node)
        # Cards that are read again are usually unchanged, and all decisions on one inventory share
        # a record.
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
        """Forget a node and its cards; without effect if it is unknown."""
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
        """Set a card's counters; return False if they are not newer or the card is unknown.

        `holdings` replace the card's whole list of them; None leaves it as it is. If nothing
        differs, only the card's version changes: cached answers about the node stay valid.
        """
        where = self._rows.places.get(uuid)
        if where is None:
            return False
        row, place = where
        if version <= self._rows.versions[row][place]:
            return False
        usage = self._rows.usages[row][place]
        counted = (usage.used_slots, usage.used_memory_mib, usage.used_core_percent)
        if counted == (slots, memory_mib, core_percent) and (
            holdings is None or usage.holdings == tuple(holdings)
        ):
            self._rows.versions[row][place] = version
            return True
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

    def shift(
        self,
        uuid: GpuUuid,
        *,
        slots: int,
        memory_mib: int,
        core_percent: int,
        added: Sequence[Mapping[str, Any]] = (),
        dropped: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Add amounts to a card that the ledger does not count yet, or subtract them again.

        The version stays; the next `apply` sets the counters without it. An unknown card has none.
        """
        where = self._rows.places.get(uuid)
        if where is None:
            return
        row, place = where
        usage = self._rows.usages[row][place]
        holdings: list[Mapping[str, Any]] | None = None
        if added or dropped:
            holdings = [*usage.holdings, *added]
            for each in dropped:
                if each in holdings:
                    holdings.remove(each)
        holdings_changed = self._rows.count(
            row,
            place,
            slots=usage.used_slots + slots,
            memory_mib=usage.used_memory_mib + memory_mib,
            core_percent=usage.used_core_percent + core_percent,
            holdings=holdings,
            version=self._rows.versions[row][place],
        )
        self.version += 1
        if holdings_changed:
            self._inventory_changed()

    def set_free_cpu(self, node: NodeName, free_cpu_milli: int | None) -> None:
        """Set the host CPU that no pod has requested; None: unknown.

        Only the node policy `fragmentation` looks at it: kube-scheduler grants it.
        """
        row = self._rows.of_node.get(node)
        if self._free_cpu.set(node, free_cpu_milli) and row is not None:
            self._rows.touch(row)

    def free_cpu(self, rows: Int) -> Int:
        """Return (rows,): free CPU in thousandths of a core; `UNLIMITED_CPU` if unknown."""
        return self._free_cpu.of(self._rows.names, rows)

    def cards(self, node: NodeName) -> tuple[CardState, ...]:
        """Return the node's cards in their order; empty if the node is unknown."""
        row = self._rows.of_node.get(node)
        if row is None:
            return ()
        return tuple(map(CardState, self._rows.usages[row], self._rows.versions[row]))

    def frozen(self, nodes: Collection[NodeName] | None = None) -> Frozen:
        """Return a copy of the state for a decision's record, with counters of some nodes.

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

    def copy(self) -> ClusterView:
        """Return the same cards in a separate view, for a thread; earlier answers stay here."""
        twin = ClusterView(self._rules)
        twin._rows = self._rows.copy(twin._status)
        twin._offered = OfferedRows(twin._rows)
        twin.usual.give(self.usual.mix)
        twin._free_cpu = self._free_cpu.copy()
        return twin

    def _as_tuples(self) -> tuple[tuple[NodeName, ...], tuple[tuple[DeviceUsage, ...], ...]]:
        if self._known is None:
            self._known = (tuple(self._rows.names), tuple(self._rows.usages))
        return self._known

    def names_by_row(self) -> tuple[NodeName, ...]:
        """Return names of all nodes by row; the tuple does not change with the view."""
        return self._as_tuples()[0]

    def _inventory_changed(self) -> None:
        self.inventory_version += 1
        self._known = None

    def _status(self, usage: DeviceUsage) -> Rule:
        sound = self.rules(usage.device.vendor).sound
        if not usage.device.healthy or (sound is not None and not sound(usage)):
            return Rule.NOT_HEALTHY
        return Rule.CORDONED if usage.cordoned else Rule.FITS


UNLIMITED_CPU = 2**40
"""CPU that no host has, in thousandths of a core; stands for unknown."""


class FreeCpu:
    """Free host CPU by node, in thousandths of a core."""

    def __init__(self) -> None:
        self._known: dict[NodeName, int] = {}

    def set(self, node: NodeName, free_milli: int | None) -> bool:
        """Set the CPU that no pod has requested; None: unknown. Return False if nothing changed."""
        if self._known.get(node) == free_milli:
            return False
        if free_milli is None:
            del self._known[node]
        else:
            self._known[node] = free_milli
        return True

    def copy(self) -> FreeCpu:
        """Return a copy that changes of this one don't reach."""
        twin = FreeCpu()
        twin._known = self._known.copy()
        return twin

    def of(self, names: Sequence[NodeName], rows: Int) -> Int:
        """Return (rows,): free CPU, `UNLIMITED_CPU` if unknown; `names` are the nodes by row."""
        found = (self._known.get(names[row], UNLIMITED_CPU) for row in rows.tolist())
        return np.fromiter(found, np.int64, len(rows))
