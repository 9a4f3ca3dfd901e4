"""The ledger in memory with its cards to be read for the view, as the scheduler's port has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_scheduler.ports.ledger import LedgerCard, PairScores
from hamicommon.domain.ids import NodeName
from hamicommon.ledger.model import QuotaUse

from tests.fakes.ledger import FakeLedger


class ReadableLedger(FakeLedger):
    """Ports CardReader and QuotaStore over its own rows; all cards are present."""

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

    async def list_uses(self) -> list[QuotaUse]:
        """See the port QuotaStore."""
        return [QuotaUse(*key, limit, used) for key, (limit, used) in self._quotas.items()]

    async def set_limits(self, namespace: str, limits: Mapping[str, int]) -> None:
        """See the port QuotaStore."""
        for resource, limit in limits.items():
            self.set_quota(namespace, resource, limit)

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        del nodes
        return {}
