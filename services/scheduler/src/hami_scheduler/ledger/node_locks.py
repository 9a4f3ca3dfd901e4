"""The lock of a node from a pod's binding to its Allocate: ours, and its mirror as an annotation.

Ours (port NodeLock) keeps our replicas apart. Nodes without our agent have the annotations that
their device plugins look at as well (`annotation_lock.py`). Nodes that bind late need neither:
there the order of Allocate calls means nothing. Where the agent reports that it means nothing among
pods with equal grants, or among those of one template, those of this replica share a hold of the
lock (`shared_holds.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from hamicommon.domain.allocate_order import AllocateOrder
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import Conflict, Unavailable
from hamicommon.ledger.model import LockHolder

from hami_scheduler.ledger.annotation_lock import MirroredLocks
from hami_scheduler.ledger.shared_holds import SharedHolds, shape_of
from hami_scheduler.ports import NodeLock

logger = logging.getLogger(__name__)

_SHORTEST_WAIT_S = 0.1


class NodeLocks:
    """Takes both in order, and frees both."""

    def __init__(
        self,
        lock: NodeLock,
        mirrored: MirroredLocks,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock`: monotonic seconds, for how long a hold may be joined."""
        self._lock = lock
        self._mirrored = mirrored
        self._orders: dict[NodeName, AllocateOrder] = {}
        """As each node's agent reported when it was last asked; absent: one by one, until known."""
        self._taken: dict[NodeName, int] = {}
        """The token that last took a node's lock here: it may have, before its node was known to
        bind late."""
        self._holds = SharedHolds(clock)
        self.takes_any_card: Callable[[PodUid], bool] = lambda _: False
        """Whether a pod's annotations leave it open which card it gets."""

    def wanted(self, allocation: Allocation) -> bool:
        """False on a node that is known to bind late."""
        return not (allocation.has_agent and self._binds_late(allocation.node))

    def note_order(self, node: NodeName, order: AllocateOrder) -> None:
        """What the node's agent reports."""
        self._orders[node] = order

    def knows(self, node: NodeName) -> bool:
        """Whether the node's agent has reported."""
        return node in self._orders

    async def acquire(self, allocation: Allocation, *, deadline: float) -> None:
        """Waits for the node until `deadline`, by `time.perf_counter`; the allocation has a token.

        Raises: Conflict when another pod has it until then, NotFound, Unavailable.
        """
        assert allocation.token is not None
        shape = self._shape(allocation)
        while not self._holds.join(allocation, shape):
            taking = self._holds.taking(allocation.node, shape)
            if taking is None:
                with self._holds.being_taken(allocation.node, shape):
                    await self._acquire(allocation, deadline)
                    self._holds.begin(allocation, shape)
                return
            # Who waits for the lock on behalf of all of this shape may fail: then the next does.
            with suppress(TimeoutError):
                async with asyncio.timeout(_left_s(deadline)):
                    await taking.wait()
            if time.perf_counter() >= deadline:
                raise Conflict(
                    f"node {allocation.node} was being bound to another pod: node lock contention"
                )

    async def _acquire(self, allocation: Allocation, deadline: float) -> None:
        assert allocation.token is not None
        holder = LockHolder(
            pod_uid=allocation.pod_uid, allocation_id=allocation.id, token=allocation.token
        )
        await self._lock.acquire(allocation.node, holder, wait_s=_left_s(deadline))
        self._taken[allocation.node] = allocation.token
        if not allocation.has_agent:
            await self._mirrored.acquire(allocation, wait_s=_left_s(deadline))

    async def release(self, allocation: Allocation) -> None:
        """Frees what this allocation holds; it ends by itself anyway."""
        if allocation.token is None:
            return
        if self.wanted(allocation):
            await self._mirrored.release(allocation)
        await self.release_token(allocation.node, allocation.token)

    async def release_token(self, node: NodeName, token: int) -> None:
        """Frees our lock of a node with an agent, if the token holds it and nobody else does."""
        held_as = self._holds.leave(node, token)
        if held_as is None or (self._binds_late(node) and self._taken.get(node) != held_as):
            return
        if self._taken.get(node) == held_as:
            del self._taken[node]
        try:
            await self._lock.release(node, held_as)
        except Unavailable as exc:
            logger.warning("node lock not freed", extra={"error": str(exc)})

    async def freed_elsewhere(self, node: NodeName, token: int) -> None:
        """Another replica, or this one, had a report of who holds the token."""
        if self._holds.has(node, token):
            await self.release_token(node, token)

    def _shape(self, allocation: Allocation) -> str:
        order = self._orders.get(allocation.node, AllocateOrder.ONE_BY_ONE)
        if order is AllocateOrder.ONE_BY_ONE or not allocation.has_agent:
            return ""
        template = order is AllocateOrder.TEMPLATE and self.takes_any_card(allocation.pod_uid)
        return shape_of(allocation, template=template)

    def _binds_late(self, node: NodeName) -> bool:
        return self._orders.get(node) is AllocateOrder.ANY


def _left_s(deadline: float) -> float:
    return max(_SHORTEST_WAIT_S, deadline - time.perf_counter())
