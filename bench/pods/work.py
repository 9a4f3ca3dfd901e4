"""Work of the played nodes, carried out by several writers at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.k8s.types import Json

RETRY_S = 1.0

logger = logging.getLogger(__name__)


async def carry_out_all(
    work: asyncio.Queue[Json], carry_out: Callable[[Json], Awaitable[None]]
) -> None:
    """Takes items until cancelled; one that fails is tried again after RETRY_S.

    What is gone or was changed by somebody else needs nothing any more.
    """
    while True:
        item = await work.get()
        try:
            await carry_out(item)
        except (NotFound, Conflict):
            continue
        except HamiError as exc:
            logger.warning("an item of a played node is retried", extra={"error": str(exc)})
            work.put_nowait(item)
            await asyncio.sleep(RETRY_S)
