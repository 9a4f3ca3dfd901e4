"""The ledger's cards in memory, as the placement engine wants them.

`LedgerSnapshotCache` feeds a `ClusterView`: whole nodes from the ledger (`refresh`), counters from
our own commits and from the events of other replicas (`apply`), and what is on its way there
(`promise`). It is a cache: a grant is guarded by the ledger, and a refusal is checked against it
(`refresh`) before it is answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.ledger.cards.demands import CardDemand
from hamicommon.ledger.model import CardCounters
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.vendor_policy import VendorRules

from hami_scheduler.ports import CardReader, LedgerCard, PairScores

_Amounts = tuple[int, int, int]
"""Slots, MiB and percent."""
_NOTHING: _Amounts = (0, 0, 0)


class LedgerSnapshotCache:
    """Keeps `cluster` equal to the ledger, at most `refresh` apart."""

    def __init__(self, cards: CardReader, rules: Mapping[str, VendorRules] | None = None) -> None:
        self._reader = cards
        self.cluster = ClusterView(rules)
        self._versions: dict[GpuUuid, int] = {}
        self._sum = 0
        self._nodes: dict[NodeName, frozenset[GpuUuid]] = {}
        self._node_of: dict[GpuUuid, NodeName] = {}
        self._promised: dict[GpuUuid, _Amounts] = {}
        """Slots, MiB and percent that the counters of a card have beside the ledger's."""
        # Counters came with a gap in the versions: something else about the card may have changed.
        self._doubtful: set[NodeName] = set()
        self._refreshing = asyncio.Lock()
        self._refreshed_at: float | None = None

    @property
    def loaded(self) -> bool:
        """True once the ledger has been read."""
        return self._refreshed_at is not None

    @property
    def age_s(self) -> float:
        """Seconds since it was last found equal to the ledger; infinite before the first time."""
        if self._refreshed_at is None:
            return float("inf")
        return time.monotonic() - self._refreshed_at

    def apply(self, counters: Iterable[CardCounters]) -> None:
        """Takes over absolute counters; older ones than known change nothing."""
        for card in counters:
            if self._is_newer(card):
                self._count(card)

    def _is_newer(self, card: CardCounters) -> bool:
        """Whether they are to be taken over; their version is known from now on."""
        known = self._versions.get(card.uuid)
        if known is None or card.version <= known:
            return False
        if card.version != known + 1 or card.node != self._node_of.get(card.uuid):
            self._doubtful.add(NodeName(card.node))
        self._set_version(card.uuid, card.version)
        return True

    def _count(self, card: CardCounters) -> None:
        slots, memory_mib, core_percent = self._promised.get(card.uuid, _NOTHING)
        self.cluster.apply(
            card.uuid,
            slots=card.used_slots + slots,
            memory_mib=card.used_memory_mib + memory_mib,
            core_percent=card.used_core_percent + core_percent,
            version=card.version,
            holdings=card.holdings,
        )

    def promise(self, card: CardDemand) -> None:
        """A reservation on the card is on its way to the ledger: it counts from now on."""
        self._add(card, 1)

    def settle(self, card: CardDemand) -> None:
        """It is written, or never will be: the ledger's own counters are what counts."""
        self._add(card, -1)

    def written(self, promises: Sequence[tuple[CardDemand, Iterable[CardCounters]]]) -> None:
        """Promises that the ledger counts now, by these counters: settled and applied.

        Both mostly come to what is counted here already. Nothing has changed for the engine then,
        and what it found out before still holds.
        """
        newest: dict[GpuUuid, CardCounters] = {}
        settled: defaultdict[GpuUuid, list[CardDemand]] = defaultdict(list)
        for promise, counters in promises:
            settled[promise.uuid].append(promise)
            newest |= {card.uuid: card for card in counters if self._is_newer(card)}
        for uuid, demands in settled.items():
            promised = self._promised.get(uuid, _NOTHING)
            for demand in demands:
                promised = _plus(promised, demand, -1)
            found = newest.pop(uuid, None)
            if found is None:
                self._promise_only(uuid, promised)
            else:
                self._set_promised(uuid, promised)
                self._count(found)
        for found in newest.values():
            self._count(found)

    def _add(self, card: CardDemand, sign: int) -> None:
        known = self._promised.get(card.uuid, _NOTHING)
        self._promise_only(card.uuid, _plus(known, card, sign))

    def _promise_only(self, uuid: GpuUuid, promised: _Amounts) -> None:
        """From now on so much is promised of the card, whatever was before."""
        self._shift(uuid, -1)
        self._set_promised(uuid, promised)
        self._shift(uuid, 1)

    def _set_promised(self, uuid: GpuUuid, promised: _Amounts) -> None:
        self._promised.pop(uuid, None)
        if any(promised):
            self._promised[uuid] = promised

    def _shift(self, uuid: GpuUuid, sign: int) -> None:
        if uuid in self._promised:
            slots, memory_mib, core_percent = self._promised[uuid]
            self.cluster.shift(
                uuid,
                slots=sign * slots,
                memory_mib=sign * memory_mib,
                core_percent=sign * core_percent,
            )

    async def refresh(self) -> bool:
        """Reads what differs from the ledger; True when something did. Raises: Unavailable."""
        async with self._refreshing:
            started = time.monotonic()
            if self.loaded and not self._doubtful and await self._reader.tally() == self._tally():
                self._refreshed_at = started
                return False
            ledger = await self._reader.versions()
            doubtful, self._doubtful = self._doubtful, set()
            await self._reload(stale := self._stale_nodes(ledger) | doubtful)
            self._refreshed_at = started
            return bool(stale)

    async def refresh_node(self, node: NodeName) -> None:
        """Reads one node again, whatever is known of it. Raises: Unavailable."""
        await self.refresh_nodes({node})

    async def refresh_nodes(self, nodes: Collection[NodeName]) -> None:
        """Reads these nodes again, whatever is known of them. Raises: Unavailable."""
        async with self._refreshing:
            await self._reload(set(nodes))

    def doubt(self, node: NodeName) -> None:
        """The node's cards may differ from what is known; the next refresh reads it."""
        self._doubtful.add(node)

    async def _reload(self, nodes: set[NodeName]) -> None:
        """Reads the nodes, and those that a card has left for one of them."""
        read: set[NodeName] = set()
        while nodes:
            names = sorted(nodes)
            try:
                cards = await self._reader.cards(names)
                pair_scores = await self._reader.pair_scores(names)
            except BaseException:  # also a cancellation: nothing else would have them read again
                self._doubtful |= nodes
                raise
            read |= nodes
            # Else such a card would count on both: the tally, which knows it once, is right by now.
            left = {self._node_of.get(card.usage.device.uuid, card.node) for card in cards} - read
            self._replace(nodes, cards, pair_scores)
            nodes = left

    def _tally(self) -> tuple[int, int]:
        return len(self._versions), self._sum

    def _stale_nodes(self, ledger: dict[str, tuple[NodeName, int]]) -> set[NodeName]:
        stale = {
            node
            for uuid, (node, version) in ledger.items()
            if self._versions.get(GpuUuid(uuid)) != version
        }
        for node, uuids in self._nodes.items():
            if any(uuid not in ledger or ledger[uuid][0] != node for uuid in uuids):
                stale.add(node)
        return stale

    def _replace(
        self,
        nodes: set[NodeName],
        cards: list[LedgerCard],
        pair_scores: dict[NodeName, PairScores],
    ) -> None:
        grouped: dict[NodeName, list[LedgerCard]] = {node: [] for node in nodes}
        for card in cards:
            grouped.setdefault(card.node, []).append(card)
        # A card may come from a node that is not read here, or have gone there before.
        touched = {card.usage.device.uuid for card in cards}
        touched.update(*(self._nodes.get(node, frozenset()) for node in grouped))
        for uuid in touched:
            self._shift(uuid, -1)
        for node in grouped:
            self._forget(node)
        for node, mine in grouped.items():
            if not mine:
                self.cluster.remove_node(node)
                continue
            self.cluster.set_node(
                node,
                [CardState(card.usage, card.version) for card in mine],
                pair_scores=pair_scores.get(node),
            )
            self._nodes[node] = frozenset(card.usage.device.uuid for card in mine)
            # The engine keeps newer counters that came in the meantime, and so does the tally.
            for state in self.cluster.cards(node):
                self._node_of[state.usage.device.uuid] = node
                self._set_version(state.usage.device.uuid, state.version)

        for uuid in touched:
            self._shift(uuid, 1)

    def _forget(self, node: NodeName) -> None:
        """The node's cards, but those that are known on another one by now."""
        for uuid in self._nodes.pop(node, frozenset()):
            if self._node_of.get(uuid) == node:
                del self._node_of[uuid]
                self._sum -= self._versions.pop(uuid)

    def _set_version(self, uuid: GpuUuid, version: int) -> None:
        self._sum += version - self._versions.get(uuid, 0)
        self._versions[uuid] = version


def _plus(amounts: _Amounts, card: CardDemand, sign: int) -> _Amounts:
    slots, memory_mib, core_percent = amounts
    return (
        slots + sign * card.slots,
        memory_mib + sign * card.memory_mib,
        core_percent + sign * card.core_percent,
    )
