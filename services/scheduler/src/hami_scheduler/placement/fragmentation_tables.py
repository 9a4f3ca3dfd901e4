"""Tables of the node policy `fragmentation`, made in a thread: no decision waits for them.

Decisions go by the tables of before until the new ones are there. The work is bounded (the number
of a linear program's pivots is), and a thread that is late is named in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time

from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.node_policies import fragmentation

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
LATE_S = 5.0
"""Some dozens of milliseconds are usual."""


class TableMaker:
    """Makes the tables that decisions on a view want."""

    def __init__(self, cluster: ClusterView, *, late_s: float = LATE_S) -> None:
        self._policy = fragmentation(cluster)
        self._policy.defer()
        self._late_s = late_s

    async def once(self) -> None:
        """Run one round; it ends when the tables that were wanted are in use."""
        make = self._policy.pending()
        if make is None:
            return
        began = time.monotonic()
        making = asyncio.create_task(asyncio.to_thread(make))
        done, _ = await asyncio.wait({making}, timeout=self._late_s)
        if not done:
            logger.warning(
                "Using the previous fragmentation tables: building new ones takes long",
                extra={"after_s": self._late_s},
            )
        put = await making
        put()
        took_ms = round(1000 * (time.monotonic() - began), 1)
        logger.info("Updated the workload mix", extra={"took_ms": took_ms})
