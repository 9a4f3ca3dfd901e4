"""The last resort: grants that the scheduler signed into the pods' annotations.

Asked only while the ledger can't be. A signature says that the grant was made once, not that it
still holds: whoever may write annotations can put that of an earlier attempt back. So one with a
lower token than was ever heard for its pod is an older attempt's, and counts no more; what was
heard is kept in the agent's state file.
"""

from __future__ import annotations

import logging

from hamicommon.errors import HamiError

from hami_node_agent.node_state import NodeState
from hami_node_agent.ports import PodApi

logger = logging.getLogger(__name__)


async def read_signed(state: NodeState, pods: PodApi) -> None:
    """Takes the newest ones into the book; what can't be read is logged."""
    try:
        grants = await pods.signed_grants()
    except HamiError as exc:
        logger.warning("signed grants not read", extra={"error": str(exc)})
        return
    least = state.saved.least_tokens
    current = [grant for grant in grants if grant.token >= least.get(grant.pod_uid, grant.token)]
    for grant in grants:
        if grant not in current:
            logger.warning(
                "signed grant is of an older attempt",
                extra={"pod_uid": grant.pod_uid, "token": grant.token},
            )
    for grant in current:
        state.book = state.book.announced(grant)
    await state.heard(current)
