"""Warns of cards whose NVLinks contradict each other, by an event on the Node.

In: `CardTracker.contradictions`, found whenever cards come. Such a pair counts nothing for
placement
(`devices/topology.py`), which nobody would see otherwise.
"""

from __future__ import annotations

import logging
from typing import Protocol

from hamicommon.errors import HamiError
from hamicommon.process.backoff import Backoff
from hamicommon.process.bulkhead import Bulkhead

from hami_node_agent.inventory.tracker import CardTracker

logger = logging.getLogger(__name__)

REASON = "NvlinksContradict"
RETRY_FIRST_S = 30.0
RETRY_LAST_S = 600.0


class NodeEvents(Protocol):
    """Events on our Node."""

    async def warn(self, reason: str, message: str) -> None:
        """A Warning event. Raises: HamiError."""


async def warn_of_links(
    cards: CardTracker, node: NodeEvents, *, bulkhead: Bulkhead | None = None
) -> None:
    """One event for each pair, until cancelled; one that could not be written is tried again."""
    reported: set[tuple[str, str]] = set()
    bulkhead = bulkhead or Bulkhead()
    backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
    while True:
        seen, failed = cards.changed.version, False
        for pair in cards.contradictions:
            if pair in reported:
                continue
            message = (
                f"cards {pair[0]} and {pair[1]} do not see the same number of NVLinks from both "
                "ends; they count as not linked for placement: look at nvidia-smi nvlink --status"
            )
            logger.warning("NVLinks contradict", extra={"cards": list(pair)})
            try:
                with bulkhead.item("links", "/".join(pair)):
                    await node.warn(REASON, message)
            except HamiError as exc:
                logger.warning("event not written, retrying", extra={"error": str(exc)})
                failed = True
                continue
            reported.add(pair)
        await cards.changed.wait(seen, backoff.failed() if failed else None)
