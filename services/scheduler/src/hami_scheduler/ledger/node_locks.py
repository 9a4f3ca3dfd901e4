"""The lock of a node from a pod's binding to its Allocate: ours, and its mirror as an annotation.

Ours (port NodeLock) is the one lock among schedulers. Nodes without our agent have the annotations
that their device plugins look at as well (`annotation_lock.py`). Nodes whose agent binds late need
neither: there the order of Allocate calls means nothing.
"""

from __future__ import annotations

import logging
import time

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName
from hamicommon.errors import HamiError
from hamicommon.ledger.model import LockHolder

from hami_scheduler.ledger.annotation_lock import MirroredLocks
from hami_scheduler.ports.cluster import NodeLock

logger = logging.getLogger(__name__)

_MIN_WAIT_S = 0.1


class NodeLocks:
    """Takes both in order, and frees both."""

    def __init__(self, lock: NodeLock, mirrored: MirroredLocks) -> None:
        self._lock = lock
        self._mirrored = mirrored
        self._binds_late: dict[NodeName, bool] = {}
        """Last answer of each node's agent; absent: it was never asked."""

    def is_required(self, allocation: Allocation) -> bool:
        """False on a node that is known to bind late."""
        return not (allocation.has_agent and self._binds_late.get(allocation.node, False))

    def is_known(self, node: NodeName) -> bool:
        """Whether the node's agent has answered."""
        return node in self._binds_late

    def note(self, node: NodeName, *, binds_late: bool) -> None:
        """Remember what the node's agent answered."""
        self._binds_late[node] = binds_late

    def on_node_deleted(self, node: NodeName) -> None:
        """Forget a node whose object was deleted."""
        self._binds_late.pop(node, None)

    async def acquire(self, allocation: Allocation, *, deadline: float) -> None:
        """Wait for the node until `deadline`, by `time.perf_counter`; the allocation has a token.

        Raises: Conflict when another pod has it until then, NotFound, Unavailable.
        """
        assert allocation.token is not None
        holder = LockHolder(
            pod_uid=allocation.pod_uid, allocation_id=allocation.id, token=allocation.token
        )
        await self._lock.acquire(allocation.node, holder, wait_s=_left_s(deadline))
        if not allocation.has_agent:
            await self._mirrored.acquire(allocation, wait_s=_left_s(deadline))

    async def release(self, allocation: Allocation) -> None:
        """Free what this allocation holds; it ends by itself anyway."""
        if allocation.token is None or not self.is_required(allocation):
            return
        await self._mirrored.release(allocation)
        await self.release_token(allocation.node, allocation.token)

    async def release_token(self, node: NodeName, token: int) -> None:
        """Free our lock of a node with an agent, if the token holds it."""
        if self._binds_late.get(node, False):
            return
        try:
            await self._lock.release(node, token)
        except HamiError as exc:
            logger.warning(
                "Failed to release the node lock; it expires on its own",
                extra={"node": node, "error": str(exc)},
            )


def _left_s(deadline: float) -> float:
    return max(_MIN_WAIT_S, deadline - time.perf_counter())
