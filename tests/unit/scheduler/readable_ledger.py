"""The ledger in memory with its cards to be read for the view, as the scheduler's port has them."""

from __future__ import annotations

from collections.abc import Sequence

from hami_scheduler.ports import LedgerCard, PairScores
from hamicommon.domain.ids import NodeName
from hamicommon.testing.ledger import FakeLedger


class ReadableLedger(FakeLedger):
    """Port CardReader over its own cards, which are all present; nobody measured their links."""

    async def tally(self) -> tuple[int, int]:
        return len(self._cards), sum(card.version for card in self._cards.values())

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        return {uuid: (card.node, card.version) for uuid, card in self._cards.items()}

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        found = [
            LedgerCard(node=card.node, usage=self.usage(uuid), version=card.version)
            for uuid, card in self._cards.items()
            if nodes is None or card.node in nodes
        ]
        return sorted(found, key=lambda card: (card.node, card.usage.device.index))

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        del nodes
        return {}
