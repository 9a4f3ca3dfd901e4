"""The whole cluster's cards as arrays, kept up to date incrementally.

The scheduler builds one from the ledger, applies every counter change that the bus brings
(`apply`, only a higher version counts), and hands it to `engine.place`. Not thread safe: one event
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
from hamicommon.placement.cluster.by_row import CardsByRow
from hamicommon.placement.cluster.cache import Memory
from hamicommon.placement.cluster.cards import Cards, Int
from hamicommon.placement.cluster.rows import NO_PAIRS, CardState, Rows, newest
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import PairScores, VendorRules


class Frozen(NamedTuple):
    """Contents of a view at one moment; later changes of the view leave it as it is.

    It is for the record of a decision (`explain/record.py` encodes it).
    """

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


__all__ = ["CardState", "ClusterView", "Frozen"]

_STANDARD = VendorRules()


class ClusterView(CardsByRow):
    """All cards of the cluster, grouped by node; rows 0..len(nodes)-1 are in use.

    `rules` has by vendor how its cards are judged; an absent one has the standard rules.
    """

    def __init__(self, rules: Mapping[str, VendorRules] | None = None) -> None:
        super().__init__(Rows(self._status))
        self.version = 0
        """Grows with every change."""
        self.memory = Memory()
        """Earlier answers of nodes; of use while they stay as they were."""
        self.usual = UsualPods()
        """Which pods come; the node policy `fragmentation` goes by them."""
        self._free_cpu = FreeCpu()
        self._rules = dict(rules or {})
        self._known: tuple[tuple[NodeName, ...], tuple[tuple[DeviceUsage, ...], ...]] | None = None
        """Names and usages as tuples, made once per inventory version."""

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
        """Put a node's cards in place of what was known of it.

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
        """Forget a node and its cards, if it is known."""
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
        """Set a card's absolute counters; False when they are not newer or the card is unknown.

        `holdings` replace the card's whole list of them; None leaves it as it is. Where nothing
        differs, only the card's version is another: what was found out of the node still holds.
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
        """Add what the ledger does not count yet to a card, or take it back.

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
        """Set the host's CPU that pods have not asked for; None: it is not known.

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
        """Return the state now, for the record of a decision: all cards, counters of some nodes.

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

    def _inventory_changed(self) -> None:
        self.inventory_version += 1
        self._known = None

    def _status(self, usage: DeviceUsage) -> Rule:
        sound = self.rules(usage.device.vendor).sound
        if not usage.device.healthy or (sound is not None and not sound(usage)):
            return Rule.NOT_HEALTHY
        return Rule.CORDONED if usage.cordoned else Rule.FITS


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
