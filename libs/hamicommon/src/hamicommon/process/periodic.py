"""Rounds of a background loop, one after another until cancelled.

In: what one round does, how long to wait after it, and the loop's name. Out: a log line for each
round that a backend's absence ended, and the next round. An error that is not of our tree ends the
task loudly, unless the loop gives a bulkhead, which counts it (`process/bulkhead.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from hamicommon.errors import HamiError
from hamicommon.process.bulkhead import Bulkhead

logger = logging.getLogger(__name__)


async def every(
    interval_s: float | Callable[[], float],
    one_round: Callable[[], Awaitable[object]],
    *,
    name: str,
    retry_s: float | None = None,
    bulkhead: Bulkhead | None = None,
) -> None:
    """Does a round at once and then `interval_s` seconds after the end of each; never returns.

    `interval_s` is asked after each round where it is a function. A round that raises HamiError is
    logged and done again after `retry_s` (default: the interval), but not later than the interval.
    """
    while True:
        failed = False
        try:
            with _guard(bulkhead, name):
                await one_round()
        except HamiError as exc:
            failed = True
            logger.warning("round failed, retrying", extra={"loop": name, "error": str(exc)})
        wait_s = interval_s() if callable(interval_s) else interval_s
        await asyncio.sleep(min(retry_s, wait_s) if failed and retry_s is not None else wait_s)


def _guard(bulkhead: Bulkhead | None, name: str) -> AbstractContextManager[object]:
    return nullcontext() if bulkhead is None else bulkhead.item(name, "round")
