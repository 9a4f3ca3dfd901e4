"""When items that failed are due again: after a second, then twice as long each time.

In: the key of an item whose turn failed. Out: whether its turn has come, and a sleep until the next
one's. What no retry will change (an object that the ledger refuses) costs one attempt in five
minutes; a new version of the object is due at once (`reset`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

FIRST_S = 1.0
MOST_S = 300.0
AWAY_MOST_S = 5.0
"""Where a backend is away, which is not the item's fault: it follows soon after its return."""


@dataclass(frozen=True, slots=True)
class _Wait:
    due_at: float
    wait_s: float


class ItemBackoff:
    """Waits of one worker's failed items; an item without one is due."""

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        """`clock`: seconds; the event loop's own when None."""
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._waits: dict[str, _Wait] = {}

    def failed(self, key: str, *, away: bool = False) -> None:
        """The item's turn failed; `away`: because a backend is."""
        before = self._waits.get(key)
        wait_s = FIRST_S if before is None else 2 * before.wait_s
        wait_s = min(wait_s, AWAY_MOST_S if away else MOST_S)
        self._waits[key] = _Wait(self._clock() + wait_s, wait_s)

    def reset(self, key: str) -> None:
        """The item's turn went well, or it is another one now."""
        self._waits.pop(key, None)

    def due(self, key: str) -> bool:
        """True when the item's turn has come."""
        return self._wait_s(key) == 0

    async def next_turn(
        self, woken: asyncio.Event, pending: Iterable[str], *, most_s: float | None = None
    ) -> None:
        """Sleeps until one of the items is due or `woken` is set, and at most that long.

        Clears `woken`.
        """
        waits = [self._wait_s(key) for key in pending]
        if most_s is not None:
            waits.append(most_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(waits, default=None)):
                await woken.wait()
        woken.clear()

    def _wait_s(self, key: str) -> float:
        wait = self._waits.get(key)
        return 0.0 if wait is None else max(0.0, wait.due_at - self._clock())
