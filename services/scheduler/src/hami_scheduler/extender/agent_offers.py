"""The question to a node's agent whether it can take the pod, with the grant in it.

In: a claimed binding. A pod that is bound to a node whose agent or kubelet is unavailable fails
there for good, so an agent that can't take it ends the binding; a bus that is unavailable does
not, because the grant is signed on the pod as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from hamicommon.domain.ids import NodeName
from hamicommon.errors import Unavailable
from hamicommon.grants.grant import Grant

from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import AgentNotReady, GrantAnnouncer

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class AgentOffers:
    """Offers grants to the agents of their nodes."""

    grants: GrantAnnouncer
    _: KW_ONLY
    on_unanswered: Callable[[NodeName], None]
    """Gets the nodes whose agent can take no pod."""
    instruments: SchedulerInstruments
    _asked: dict[NodeName, asyncio.Task[bool | None]] = field(init=False, default_factory=dict)

    async def binds_late(self, node: NodeName) -> bool | None:
        """Ask the agent once for all callers whether the order of Allocate calls means nothing.

        Returns None if it is unknown. Raises: AgentNotReady.
        """
        asked = self._asked.get(node)
        if asked is None:
            asked = self._asked[node] = asyncio.create_task(self.grants.binds_late(node))
            asked.add_done_callback(lambda _: self._asked.pop(node, None))
        await asyncio.wait([asked])
        try:
            return asked.result()
        except AgentNotReady:
            self.on_unanswered(node)
            raise

    async def offer(self, grant: Grant, node: NodeName) -> bool | None:
        """Offer the grant, and return whether the node binds it late.

        Returns None if it is unknown. Raises: AgentNotReady.
        """
        try:
            return await self.grants.offer(grant)
        except AgentNotReady:
            self.on_unanswered(node)
            raise
        except Unavailable as exc:
            self.instruments.grants_unannounced.inc()
            logger.warning(
                "Failed to publish a grant; the node uses the pod's signed grant",
                extra={"error": str(exc)},
            )
            return None
