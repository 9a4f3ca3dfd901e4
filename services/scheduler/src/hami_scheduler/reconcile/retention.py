"""Remove history that is older than the settings allow, once an hour.

Rows are deleted in small batches with a pause between them, so decisions are hardly delayed. Any
number of replicas may do it concurrently. History that auditors need longer is exported first
(docs/operations.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hamicommon.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.housekeeping import PostgresRetention

logger = logging.getLogger(__name__)

INTERVAL_S = 3600.0
PAUSE_S = 0.2
"""Pause between two batches."""
MAX_BATCHES = 5000
"""Maximum batches of one kind in a round."""


KINDS = ("grants", "drift", "health", "limits", "calls", "capacity", "cards")
"""Kinds of history in the order of removal, as grants refer to cards."""


@dataclass(eq=False)
class HistoryCleanup:
    """Remove old history, kind by kind.

    `days` by kind; 0 keeps it forever.
    """

    retention: PostgresRetention
    days: Mapping[str, int]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def once(self) -> dict[str, int]:
        """Remove old history now; return how much of each kind. Failures are logged."""
        gone: dict[str, int] = {}
        for kind in KINDS:
            if not self.days.get(kind):
                continue
            try:
                gone[kind] = await self._all_of(kind)
            except (Unavailable, Conflict) as exc:
                logger.warning(
                    "Failed to remove old history", extra={"kind": kind, "error": str(exc)}
                )
                continue
            if gone[kind]:
                logger.info("Removed old history", extra={"kind": kind, "count": gone[kind]})
        return gone

    async def _all_of(self, kind: str) -> int:
        total = 0
        for _ in range(MAX_BATCHES):
            removed = await self.retention.forget(kind, keep_days=self.days[kind])
            if not removed:
                break
            total += removed
            await self.sleep(PAUSE_S)
        return total
