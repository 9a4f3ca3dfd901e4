"""Repeat a function at intervals until cancelled.

In: what one round does, how long to wait after it, and the loop's name. Out: a log line when a
backend's absence begins to end rounds, one when it is over, and the next round. An error that is
not of our tree ends the task loudly, unless the loop gives a bulkhead, which counts it
(`process/bulkhead.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from hamicommon.errors import HamiError
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage

logger = logging.getLogger(__name__)


async def every(
    interval_s: float | Callable[[], float],
    one_round: Callable[[], Awaitable[object]],
    *,
    name: str,
    retry_s: float | None = None,
    bulkhead: Bulkhead | None = None,
) -> None:
    """Run a round immediately, and again `interval_s` seconds after each one's end; never returns.

    `interval_s` is asked after each round where it is a function. A round that raises HamiError is
    logged and done again after `retry_s` (default: the interval), but not later than the interval.
    """
    outage = Outage(
        logger,
        failed="Failed to run a round, retrying",
        again="Running rounds again",
        about={"loop": name},
        starts_within_s=0.0,  # the next round may be an hour away
    )
    while True:
        failed = False
        try:
            with _guard(bulkhead, name):
                await one_round()
            outage.on_success()
        except HamiError as exc:
            failed = True
            outage.on_failure(exc)
        wait_s = interval_s() if callable(interval_s) else interval_s
        await asyncio.sleep(min(retry_s, wait_s) if failed and retry_s is not None else wait_s)


def _guard(bulkhead: Bulkhead | None, name: str) -> AbstractContextManager[object]:
    return nullcontext() if bulkhead is None else bulkhead.item(name, "round")
