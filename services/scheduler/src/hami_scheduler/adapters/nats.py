"""Publish grants to nodes on the bus, and ask their agents."""

from __future__ import annotations

import asyncio
import logging

from hamicommon import events
from hamicommon.bus.client import Bus, NobodyAnswers
from hamicommon.bus.reader import read_of_node
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.grants.grant import Grant

from hami_scheduler.ports.cluster import AgentNotReady

logger = logging.getLogger(__name__)

# A bind waits no longer for the bus, or for an agent on it: the pod carries the signed grant too.
BIND_WAIT_S = 1.0
# A file and a local socket, each with its own time-out, on a node that may be busy.
HOLDINGS_WAIT_S = 5.0
# Agents reconnect within about a second of us; until then silence proves nothing, and we ask again.
SETTLED_S = 5.0
ASK_INTERVAL_S = 0.25


class NatsGrantAnnouncer:
    """Publisher of grants, and client of node-agents, on the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def offer(self, grant: Grant) -> bool | None:
        """Offer the grant: ask the node's agent whether it and the kubelet can take the pod now."""
        answer = await self._ask(NodeName(grant.node), grant)
        if answer is None or not answer.taken:
            await self.announce(grant)
        return None if answer is None else answer.late

    async def binds_late(self, node: NodeName) -> bool | None:
        """Return whether the node binds late, asking its agent before the first grant."""
        answer = await self._ask(node, None)
        return None if answer is None else answer.late

    async def _ask(self, node: NodeName, grant: Grant | None) -> events.Readiness | None:
        """Return the agent's answer; None: unknown. Raises: AgentNotReady."""
        subject = events.readiness_subject(node)
        question = events.ReadinessRequest(node=node, grant=grant)
        while True:
            try:
                reply = await self._bus.request(subject, question, timeout_s=BIND_WAIT_S)
            except NobodyAnswers as exc:
                if self._bus.connected_for_s >= SETTLED_S:
                    raise AgentNotReady(f"the node-agent of {node} is not running") from exc
                await asyncio.sleep(ASK_INTERVAL_S)
            except Unavailable:
                return None
            else:
                break
        try:
            answer = read_of_node(events.Readiness, subject, reply, "readiness")
        except InvalidRequest as exc:
            # An agent that answers runs; whether it is ready is unknown, as without a bus.
            logger.warning(
                "Failed to read a node-agent's answer", extra={"node": node, "error": str(exc)}
            )
            return None
        if not answer.ready:
            raise AgentNotReady(f"node {node} can't take a pod now: {answer.reason}")
        return answer

    async def announce(self, grant: Grant) -> None:
        """Publish the grant to its node. Raises: Unavailable (bus)."""
        await self._bus.publish(
            events.grants_subject(grant.node),
            events.GrantAnnounced(grant=grant),
            message_id=f"grant-{grant.allocation_id}-{grant.token}",
            timeout_s=BIND_WAIT_S,
        )

    async def withdraw(self, allocation: Allocation, reason: str) -> None:
        """Withdraw the grant at its node. Raises: Unavailable if the bus is."""
        token = allocation.token or 0
        await self._bus.publish(
            events.grants_subject(allocation.node),
            events.GrantWithdrawn(
                allocation_id=allocation.id,
                pod_uid=allocation.pod_uid,
                node=allocation.node,
                token=token,
                reason=reason,
            ),
            message_id=f"withdrawn-{allocation.id}-{token}",
            timeout_s=BIND_WAIT_S,
        )


class NatsNodeWitness:
    """Client that asks a node which pods its kubelet has."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def holdings(self, node: NodeName) -> events.NodeHoldings:
        """Return the contents of the kubelet's checkpoint on the node.

        Raises: NotFound (no agent of ours runs there), Unavailable (the bus is unavailable, or
        silence).
        """
        subject, question = events.holdings_subject(node), events.HoldingsRequest(node=node)
        try:
            reply = await self._bus.request(subject, question, timeout_s=HOLDINGS_WAIT_S)
        except NobodyAnswers as exc:
            raise NotFound(f"no HAMi node-agent runs on {node}") from exc
        try:
            return read_of_node(events.NodeHoldings, subject, reply, "holdings")
        except InvalidRequest as exc:
            raise Unavailable(str(exc)) from exc
