"""The question to a node's agent whether it can take the pod, with the grant in it.

In: a claimed binding. A pod that is bound to a node whose agent or kubelet is away fails there for
good, so an agent that can't take it ends the binding; a bus that is away does not, because the
grant is signed on the pod as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hamicommon.domain.ids import NodeName
from hamicommon.errors import Unavailable
from hamicommon.grants.grant import Grant

from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import AgentNotReady, GrantAnnouncer

logger = logging.getLogger(__name__)


class AgentOffers:
    """Offers grants to the agents of their nodes."""

    def __init__(
        self,
        grants: GrantAnnouncer,
        *,
        on_unanswered: Callable[[NodeName], None],
        instruments: SchedulerInstruments,
    ) -> None:
        """`on_unanswered` gets the nodes whose agent can take no pod."""
        self._grants = grants
        self._on_unanswered = on_unanswered
        self._instruments = instruments
        self._asked: dict[NodeName, asyncio.Task[bool | None]] = {}

    async def binds_late(self, node: NodeName) -> bool | None:
        """Ask the agent once for all callers whether the order of Allocate calls means nothing.

        Returns None if it is unknown. Raises: AgentNotReady.
        """
        asked = self._asked.get(node)
        if asked is None:
            asked = self._asked[node] = asyncio.create_task(self._grants.binds_late(node))
            asked.add_done_callback(lambda _: self._asked.pop(node, None))
        await asyncio.wait([asked])
        try:
            return asked.result()
        except AgentNotReady:
            self._on_unanswered(node)
            raise

    async def offer(self, grant: Grant, node: NodeName) -> bool | None:
        """Offer the grant, and return whether the node binds it late.

        Returns None if it is unknown. Raises: AgentNotReady.
        """
        try:
            return await self._grants.offer(grant)
        except AgentNotReady:
            self._on_unanswered(node)
            raise
        except Unavailable as exc:
            self._instruments.grants_unannounced.inc()
            logger.warning("grant not on the bus, only signed", extra={"error": str(exc)})
            return None
