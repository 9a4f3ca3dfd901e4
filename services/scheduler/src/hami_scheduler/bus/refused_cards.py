"""Cards that nodes report and the ledger does not take: logged, journalled and counted, once each.

In: per report, what was refused and why (`ledger/inventory_diff.py` decides). The node's other
cards are served; `hamictl drift` has a line for each refused one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from hamicommon.domain.ids import NodeName

from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.ledger import DriftJournal

logger = logging.getLogger(__name__)

CLASS = "card-refused"
MOST_LINES = 16
"""Of one report: a node can't fill the journal; the rest is one line with their number."""


@dataclass(eq=False, kw_only=True)
class RefusedCards:
    """What of each node is refused at present."""

    journal: DriftJournal
    instruments: SchedulerInstruments
    _refused: dict[NodeName, Mapping[str, str]] = field(default_factory=dict, init=False)

    async def note(self, node: NodeName, refused: Mapping[str, str]) -> None:
        """Takes note of one report; what was refused before as well is not reported again.

        `refused`: the reason, by uuid or by whatever names the card. Raises: Unavailable.
        """
        before = self._refused.get(node, {})
        if not refused and not before:
            return
        new = {card: why for card, why in refused.items() if before.get(card) != why}
        for card, why in list(new.items())[:MOST_LINES]:
            await self._report(node, card, why)
        if len(new) > MOST_LINES:
            await self._report(node, f"{len(new) - MOST_LINES} more", "refused in the same report")
        if refused:
            self._refused[node] = dict(refused)
        else:
            del self._refused[node]
        self._count()

    def forget(self, node: NodeName) -> None:
        """The node is gone."""
        self._refused.pop(node, None)
        self._count()

    async def _report(self, node: NodeName, card: str, why: str) -> None:
        logger.warning("card refused", extra={"node": node, "card": card, "error": why})
        self.instruments.drift.labels(CLASS).inc()
        await self.journal.drift(CLASS, f"{node}/{card}", why, repaired=False)

    def _count(self) -> None:
        cards = sum(map(len, self._refused.values()))
        self.instruments.drift_items.labels(CLASS).set(cards)
