"""Tables of the node policy `fragmentation`, made in a thread: no decision waits for them.

Decisions go by the tables of before until the new ones are there. The work is bounded (the number
of a linear program's pivots is), and a thread that is late is named in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time

from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.fragmentation.current import CurrentTables

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LATE_S = 5.0
"""Some dozens of milliseconds are usual."""


class TableMaker:
    """Makes what decisions on this view want."""

    def __init__(self, cluster: ClusterView, *, late_s: float = LATE_S) -> None:
        self._current = cluster.memory.kept(CurrentTables)
        self._current.defer()
        self._late_s = late_s

    async def once(self) -> None:
        """One round; returns when the tables that were wanted are in use."""
        order = self._current.wanted
        if order is None:
            return
        began = time.monotonic()
        making = asyncio.create_task(asyncio.to_thread(order.made))
        done, _ = await asyncio.wait({making}, timeout=self._late_s)
        if not done:
            logger.warning(
                "the tables of the node policy fragmentation are late: pods are placed by those "
                "of before",
                extra={"after_s": self._late_s, "shapes": len(order.mix.shapes)},
            )
        tables = await making
        self._current.put(order, tables)
        logger.info(
            "the usual pods have changed",
            extra={
                "shapes": len(order.mix.shapes),
                "took_ms": round(1000 * (time.monotonic() - began), 1),
            },
        )
