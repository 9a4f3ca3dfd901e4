"""How long history is kept: once an hour what is older than the settings allow leaves the ledger.

In small batches with a pause between them, so that decisions hardly notice. Any number of replicas
may do it at once. What auditors want for longer is exported first (docs/operations.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hamicommon.errors import Conflict, Unavailable

logger = logging.getLogger(__name__)

EVERY_S = 3600.0
PAUSE_S = 0.2
"""Between two batches."""
MOST_BATCHES = 5000
"""Of a round and kind; a backlog of years goes on in the next."""


class HistoryRetention(Protocol):
    """Removes one batch of what is older than `keep_days`; returns how much (0: all is gone).

    Each raises Conflict (a lock was not to be had) and Unavailable.
    """

    async def forget_grants(self, *, keep_days: int) -> int:
        """Pods all of whose grants ended before then, with all that belongs to these."""
        ...

    async def forget_drift(self, *, keep_days: int) -> int:
        """Lines of the drift journal."""
        ...

    async def forget_health(self, *, keep_days: int) -> int:
        """Health changes of cards, but for each card's newest."""
        ...

    async def forget_limits(self, *, keep_days: int) -> int:
        """Periods in which containers were beyond their grants, and that ended before then."""
        ...

    async def forget_calls(self, *, keep_days: int) -> int:
        """Calls of operators."""
        ...

    async def forget_capacity(self, *, keep_days: int) -> int:
        """Periods of cards and quotas that ended, and gaps of nodes."""
        ...

    async def forget_cards(self, *, keep_days: int) -> int:
        """Cards that have been absent since, and that no grant names."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepDays:
    """Days per kind of history; 0 keeps it for ever."""

    grants: int
    drift: int
    health: int
    calls: int
    capacity: int
    cards: int
    limits: int = 0


class HistoryCleanup:
    """Removes what is old, kind by kind."""

    def __init__(
        self,
        retention: HistoryRetention,
        days: KeepDays,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        # Grants first: they hold cards.
        kinds = (
            ("grants", days.grants, retention.forget_grants),
            ("drift", days.drift, retention.forget_drift),
            ("health", days.health, retention.forget_health),
            ("limits", days.limits, retention.forget_limits),
            ("calls", days.calls, retention.forget_calls),
            ("capacity", days.capacity, retention.forget_capacity),
            ("cards", days.cards, retention.forget_cards),
        )
        self._kinds: list[tuple[str, Callable[[], Awaitable[int]]]] = [
            (kind, partial(forget, keep_days=keep)) for kind, keep, forget in kinds if keep
        ]

    async def once(self) -> dict[str, int]:
        """Removes what is old by now; how much of each kind. What fails is logged and stays."""
        gone: dict[str, int] = {}
        for kind, forget in self._kinds:
            try:
                gone[kind] = await self._all_of(forget)
            except (Unavailable, Conflict) as exc:
                logger.warning("old history stays", extra={"kind": kind, "error": str(exc)})
                continue
            if gone[kind]:
                logger.info("old history removed", extra={"kind": kind, "count": gone[kind]})
        return gone

    async def _all_of(self, forget: Callable[[], Awaitable[int]]) -> int:
        total = 0
        for _ in range(MOST_BATCHES):
            removed = await forget()
            if not removed:
                break
            total += removed
            await self._sleep(PAUSE_S)
        return total
