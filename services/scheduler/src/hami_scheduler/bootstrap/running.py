"""Background loops: they run together, and some of them only while this replica is active."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from hamicommon.errors import HamiError, Unavailable
from hamicommon.k8s.informer import Informer
from hamicommon.process.shutdown import end

from hami_scheduler.activity import Activity, SchedulerLease
from hami_scheduler.api.service import Loop

logger = logging.getLogger(__name__)

LOAD_RETRY_S = 0.5


@asynccontextmanager
async def running(loops: Sequence[tuple[str, Loop]]) -> AsyncIterator[None]:
    """Run the loops during the block; one that dies cancels the block.

    Raises: what the loop died of.
    """
    block = asyncio.current_task()
    assert block is not None
    died: list[asyncio.Task[None]] = []
    stopping = False

    def on_done(task: asyncio.Task[None]) -> None:
        if not stopping and not task.cancelled() and not died:
            died.append(task)
            block.cancel()

    tasks = [asyncio.create_task(run(), name=name) for name, run in loops]
    for task in tasks:
        task.add_done_callback(on_done)
    try:
        yield
    except asyncio.CancelledError:
        if not died:
            raise
        block.uncancel()
        logger.error("Restarting a background loop that failed", extra={"loop": died[0].get_name()})
        raise died[0].exception() or RuntimeError(f"{died[0].get_name()} ended") from None
    finally:
        stopping = True
        await end(tasks)


def while_active(
    lease: SchedulerLease,
    activity: Activity,
    *,
    load: Callable[[], Awaitable[object]],
    informers: Sequence[Informer],
    loops: Sequence[tuple[str, Loop]],
    hold_s: float = 0.0,
) -> Loop:
    """Return the loop that runs `loops` from when this replica becomes active.

    `load` reads the ledger; calls are let in `hold_s` later. The handlers of `informers` are shown
    what these have, as after a start. The loop ends with an error when the Lease is lost, and with
    it the process, as kube-scheduler's does: what it was about to do is another replica's now.
    """

    async def run() -> None:
        logger.info("Standing by", extra={"because": lease.explain()})
        await lease.wait_until_held_here()
        await _loaded(load)
        for informer in informers:
            informer.start_handlers()
        async with running(loops):
            with suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await lease.wait_until_lost()
            if lease.is_held_here:
                activity.begin()
                logger.info("Became active", extra={"lease": lease.name})
            try:
                await lease.wait_until_lost()
            finally:
                activity.end()
            logger.warning("Exiting: lost the Lease", extra={"because": lease.explain()})
            raise Unavailable(f"not active any more: {lease.explain()}")

    return run


async def _loaded(load: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await load()
        except HamiError as exc:
            logger.warning("Failed to read the ledger, retrying", extra={"error": str(exc)})
            await asyncio.sleep(LOAD_RETRY_S)
        else:
            return
