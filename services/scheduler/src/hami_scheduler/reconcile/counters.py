"""Cards whose counters are not the sum of their live grants, and sequences that ran out.

In: the ledger. Out: counters and sequences that are right, a line in the drift journal for each,
and a view that has the cards as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hami_scheduler.drift import Drift
from hami_scheduler.ledger.cluster_state import ClusterState

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.inventory.counters import PostgresCounters


CARD_CLASS = "card-counters"
SEQUENCE_CLASS = "number-sequence"


@dataclass(eq=False, kw_only=True)
class CounterRepairer:
    """Finds and repairs what is counted wrong."""

    store: PostgresCounters
    view: ClusterState
    drift: Drift

    async def once(self) -> int:
        """Compare once; return the number of repairs. Raises: Conflict, Unavailable."""
        sequences = await self.store.repair_sequences()
        for each in sequences:
            detail = f"it was at {each.was}, and goes on from {each.is_now}"
            await self.drift.note(SEQUENCE_CLASS, each.name, detail, repaired=True)
        cards = await self.store.repair_cards()
        if cards:
            # The view takes no version that is lower than the one it has.
            for node in {card.node for card in cards if card.is_older}:
                self.view.cluster.remove_node(node)
            await self.view.refresh_nodes({card.node for card in cards})
        for card in cards:
            subject = f"{card.node}/{card.uuid}"
            await self.drift.note(CARD_CLASS, subject, card.detail, repaired=True)
        return len(sequences) + len(cards)
