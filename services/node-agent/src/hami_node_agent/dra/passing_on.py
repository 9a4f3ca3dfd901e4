"""Records of slices that others hold by the same claims go on as theirs when a grant ends."""

from __future__ import annotations

import logging

from hamicommon.errors import Unavailable
from hamicommon.process.backoff import Backoff

from hami_node_agent.grants.records import passed_on
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_LAST_S = 0.5, 30.0


async def keep_passed_on(state: NodeState) -> None:
    """Passes records on when grants end, until cancelled."""
    backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
    while True:
        seen, wait_s = state.book_changed.version, None
        try:
            await state.change(lambda saved: passed_on(saved, state.book))
            backoff.succeeded()
        except Unavailable as exc:
            wait_s = backoff.failed()
            logger.warning("records not passed on, retrying", extra={"error": str(exc)})
        await state.book_changed.wait(seen, wait_s)
