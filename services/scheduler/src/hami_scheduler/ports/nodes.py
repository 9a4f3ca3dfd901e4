"""A node that a pod is bound to: its lock, and what its agent is sent and asked."""

from __future__ import annotations

from typing import Protocol

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict
from hamicommon.events import NodeHoldings
from hamicommon.grants.grant import Grant
from hamicommon.ledger.model import LockHolder


class NodeLock(Protocol):
    """At most one pod per node is between bind and Allocate."""

    async def acquire(self, node: NodeName, holder: LockHolder, *, wait_s: float) -> None:
        """Waits for the lock; a holder of the same allocation takes it over.

        Raises: Conflict when somebody else still has it after `wait_s`, Unavailable.
        """
        ...

    async def release(self, node: NodeName, token: int) -> bool:
        """Frees the lock if `token` holds it; True when it did. Raises: Unavailable."""
        ...

    async def holder(self, node: NodeName) -> LockHolder | None:
        """Who has it. Raises: Unavailable."""
        ...


class AgentNotReady(Conflict):
    """The node's agent does not run, or can't take a pod now."""


class NodeWitness(Protocol):
    """Who holds devices on a node, by the node's own agent."""

    async def holdings(self, node: NodeName) -> NodeHoldings:
        """Reads the checkpoint of the node's kubelet.

        Raises: NotFound (no agent of ours runs there), Unavailable (the bus is away, or silence).
        """
        ...


class GrantAnnouncer(Protocol):
    """Publishes grants to their nodes."""

    async def offer(self, grant: Grant) -> bool | None:
        """Asks the node's agent whether it and its kubelet can take the pod now, with its grant.

        Returns whether the node binds it late: then no other pod need wait for its Allocate. None
        if it is unknown: a bus that is away proves nothing, and is no reason to wait. Raises:
        AgentNotReady when the agent refuses or does not run, Unavailable when the grant is not
        known to be on its way.
        """
        ...

    async def binds_late(self, node: NodeName) -> bool | None:
        """The same question without a grant, before the first one goes there.

        Returns None if it is unknown. Raises: AgentNotReady.
        """
        ...

    async def granted(self, grant: Grant) -> None:
        """Publishes it on the stream of its node. Raises: Unavailable when the bus is away."""
        ...

    async def withdrawn(self, allocation: Allocation, reason: str) -> None:
        """Raises: Unavailable when the bus is away."""
        ...
