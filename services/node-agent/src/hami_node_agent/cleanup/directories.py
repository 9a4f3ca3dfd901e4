"""Removes what pods left behind, a little every few seconds, beside everything else.

In: directories that `garbage_collection.py` and `allocate.py` gave up. One may hold a hundred
thousand files, or be filled by a process that outlived its pod: a round has an end, and another one
follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hamicommon.process.periodic import every

INTERVAL_S = 5.0
BUSY_INTERVAL_S = 1.0
BUDGET_S = 2.0
"""Of a round; with the shorter pause this is two thirds of a core while there is much to remove."""


async def remove_leftovers(
    work: Callable[[float], bool], *, interval_s: float = INTERVAL_S, budget_s: float = BUDGET_S
) -> None:
    """Calls `work` (blocking; True: there is more) with its budget in seconds until cancelled."""
    more = False

    async def one_round() -> None:
        nonlocal more
        more = await asyncio.to_thread(work, budget_s)

    def pause_s() -> float:
        return min(BUSY_INTERVAL_S, interval_s) if more else interval_s

    await every(pause_s, one_round, name="leftovers")
