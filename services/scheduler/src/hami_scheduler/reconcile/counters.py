"""Cards whose counters are not the sum of their live grants, and sequences that ran out.

In: the ledger. Out: counters and sequences that are right, a line in the drift journal for each,
and a view that has the cards as they are.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.ledger import CounterStore, DriftJournal

logger = logging.getLogger(__name__)

CARD_CLASS = "card-counters"
SEQUENCE_CLASS = "number-sequence"


@dataclass(eq=False, kw_only=True)
class CounterRepairer:
    """Finds and repairs what is counted wrong."""

    store: CounterStore
    view: ClusterState
    journal: DriftJournal
    instruments: SchedulerInstruments

    async def once(self) -> int:
        """One look; returns how many differences were repaired. Raises: Conflict, Unavailable."""
        sequences = await self.store.repair_sequences()
        for each in sequences:
            detail = f"it was at {each.was}, and goes on from {each.is_now}"
            await self._note(SEQUENCE_CLASS, each.name, detail)
        cards = await self.store.repair_cards()
        if cards:
            # The view takes no version that is lower than the one it has.
            for node in {card.node for card in cards if card.is_older}:
                self.view.cluster.remove_node(node)
            await self.view.refresh_nodes({card.node for card in cards})
        for card in cards:
            await self._note(CARD_CLASS, f"{card.node}/{card.uuid}", card.detail)
        return len(sequences) + len(cards)

    async def _note(self, kind: str, subject: str, detail: str) -> None:
        logger.warning("counted again", extra={"subject": subject, "detail": detail})
        self.instruments.drift.labels(kind).inc()
        await self.journal.drift(kind, subject, detail, repaired=True)
