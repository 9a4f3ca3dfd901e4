"""The book brought up to date: by the ledger, and while it can't be asked by signed annotations.

The last resort are grants that the scheduler signed into the pods' annotations.

Asked only while the ledger can't be. A signature proves that the grant was made once, not that it
still holds: a user who may write annotations can put that of an earlier attempt back. So one with a
lower token than was ever heard for its pod is an older attempt's, and counts no more; what was
heard is kept in the agent's state file.
"""

from __future__ import annotations

import logging

from hamicommon.errors import HamiError, InvalidRequest, Unavailable

from hami_node_agent.grants.ports import GrantSource, NodePodApi
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)


async def refresh_book(state: NodeState, source: GrantSource, pods: NodePodApi) -> bool:
    """Takes what the ledger has into the book; what it lacks is not granted. False: the ledger
    can't be asked.

    Signed grants are read only where the ledger can't be asked: an annotation outlives its
    allocation, and a pod that was bound too late still carries it.
    """
    refreshed = await _refreshed(source)
    if not refreshed:
        await read_signed(state, pods)
    return refreshed


async def read_signed(state: NodeState, pods: NodePodApi) -> None:
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


async def _refreshed(source: GrantSource) -> bool:
    """True when the book now has all that the ledger has."""
    try:
        return await source.refresh()
    except (Unavailable, InvalidRequest) as exc:
        logger.warning("no grant snapshot", extra={"error": str(exc)})
        return False
