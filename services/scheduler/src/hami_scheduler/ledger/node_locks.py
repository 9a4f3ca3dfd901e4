"""Lock a node from a pod's binding to its Allocate, in Redis and by annotations.

Ours (port NodeLock) is the one lock among schedulers, and separates our own pods. Nodes without our
agent also have the annotations that their device plugins read (architecture 2.5, protocol 2.5):
they show the device plugin whose Allocate is next, and exclude a scheduler of HAMi. The plugin
removes its annotation after Allocate, which frees our lock too (`on_removed`, from the node watch).
HAMi's `hami.io/mutex.lock` names its pod and ends after five minutes; a vendor's own lock is only a
time without an owner and ends after two. Nodes whose agent binds late need no lock: there the order
of Allocate calls has no meaning.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, InvalidRequest, NotFound
from hamicommon.k8s.annotations import annotations_of
from hamicommon.ledger.model import LockHolder
from hamicommon.process.best_effort import log_failure
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.node_lock_annotation import (
    HeldLock,
    holder_of,
    is_owned_by,
    lock_keys,
    value_of,
)
from hami_scheduler.ports.cluster import NodeApi, NodeLock, PodApi
from hami_scheduler.ports.ledger import AllocationStore

logger = logging.getLogger(__name__)

Clock = Callable[[], datetime]
# One reader per node and replica at most, and only while another pod's Allocate is awaited.
POLL_S = 0.2
# Its kubelet writes to the Node all the time; a guarded patch is retried.
RELEASE_TRIES = 5


@dataclass(eq=False, kw_only=True)
class MirroredLocks:
    """Lock annotations of other vendors' plugins."""

    nodes: NodeApi
    pods: PodApi
    lock: NodeLock
    store: AllocationStore
    vendors: Vendors
    clock: Clock = lambda: datetime.now(UTC)

    async def acquire(self, allocation: Allocation, *, wait_s: float) -> None:
        """Set every lock annotation that the pod's plugins expect.

        The caller holds the node's lock.

        Raises: Conflict when another pod has one until the end, NotFound, Unavailable.
        """
        deadline = time.monotonic() + wait_s
        for key in lock_keys(allocation, self.vendors):
            while (refusal := await self._attempt(key, allocation)) is not None:
                if time.monotonic() + POLL_S > deadline:
                    raise Conflict(refusal)
                await asyncio.sleep(POLL_S)

    async def _attempt(self, key: str, allocation: Allocation) -> str | None:
        """Set one annotation; return None on success, otherwise why it is held."""
        now = self.clock()
        node = await self.nodes.get(allocation.node)
        value = annotations_of(node).get(key, "")
        try:
            holder = holder_of(key, value, now)
        except InvalidRequest as exc:
            raise Conflict(f"node {allocation.node} can't be locked: {exc}") from exc
        if holder is not None:
            if is_owned_by(key, value, allocation):
                return None
            if not await self._is_abandoned(holder):
                return _contention(key, allocation.node, holder)
        try:
            await self.nodes.annotate(
                allocation.node,
                {key: value_of(key, allocation, now)},
                resource_version=node["metadata"]["resourceVersion"],
            )
        except Conflict:
            return (
                f"node {allocation.node} changed at every attempt to lock it: node lock contention"
            )
        return None

    async def _is_abandoned(self, holder: HeldLock) -> bool:
        """Return whether the pod that holds the lock is gone (protocol 2.5)."""
        if not holder.pod_name:
            return False
        try:
            await self.pods.get(holder.namespace, holder.pod_name)
        except NotFound:
            return True
        return False

    async def release(self, allocation: Allocation) -> None:
        """Remove the allocation's lock annotations, which otherwise expire.

        A lock that names no pod is removed only while the allocation has the node's own lock.
        """
        if allocation.has_agent:
            return
        for key in lock_keys(allocation, self.vendors):
            with log_failure(logger, "Failed to remove a node lock annotation", key=key):
                await self._release(key, allocation)

    async def _release(self, key: str, allocation: Allocation) -> None:
        for _ in range(RELEASE_TRIES):
            try:
                node = await self.nodes.get(allocation.node)
            except NotFound:
                return
            value = annotations_of(node).get(key, "")
            mine = bool(value) and is_owned_by(key, value, allocation)
            if mine is None:
                mine = await self._holds(allocation)
            if not mine:
                return
            try:
                await self.nodes.annotate(
                    allocation.node,
                    {key: None},
                    resource_version=node["metadata"]["resourceVersion"],
                )
            except Conflict:
                continue
            return
        raise Conflict(f"node {allocation.node} changed at each of {RELEASE_TRIES} tries")

    async def _holds(self, allocation: Allocation) -> bool:
        holder = await self.lock.holder(allocation.node)
        return holder is not None and holder.token == allocation.token

    async def on_removed(self, node: NodeName, key: str, value: str) -> None:
        """Handle the removal of a lock annotation: the plugin has answered its pod.

        Raises: Unavailable.
        """
        holder = await self.lock.holder(node)
        if holder is None:
            return
        allocation = await self.store.get(holder.allocation_id)
        if allocation is None or allocation.has_agent:
            return
        mine = is_owned_by(key, value, allocation)
        if mine is None:
            # It names no pod: the holder freed it only if the node has no such lock now.
            mine = key not in annotations_of(await self.nodes.get(node))
        if mine:
            await self.lock.release(node, holder.token)


def _contention(key: str, node: str, holder: HeldLock) -> str:
    who = f" for pod {holder.namespace}/{holder.pod_name}" if holder.pod_name else ""
    return (
        f"node {node} is locked by its annotation {key}{who} until "
        f"{holder.until.astimezone(UTC):%H:%M:%S} UTC: node lock contention"
    )


class NodeLocks:
    """Both locks of a node, taken in order."""

    def __init__(self, lock: NodeLock, mirrored: MirroredLocks) -> None:
        self._lock = lock
        self._mirrored = mirrored
        self._binds_late: dict[NodeName, bool] = {}
        """Last answer of each node's agent; absent: it was never asked."""

    def is_required(self, allocation: Allocation) -> bool:
        """Return False for a node that is known to bind late."""
        return not (allocation.has_agent and self._binds_late.get(allocation.node, False))

    def is_known(self, node: NodeName) -> bool:
        """Return whether the node's agent has answered if it binds late."""
        return node in self._binds_late

    def note(self, node: NodeName, *, binds_late: bool) -> None:
        """Remember the answer of the node's agent."""
        self._binds_late[node] = binds_late

    def on_node_deleted(self, node: NodeName) -> None:
        """Forget a deleted node."""
        self._binds_late.pop(node, None)

    async def acquire(self, allocation: Allocation, *, deadline: float) -> None:
        """Lock the node, waiting until `deadline` (`time.perf_counter`).

        The allocation has a token.

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
        """Free the allocation's locks, which otherwise expire."""
        if allocation.token is None or not self.is_required(allocation):
            return
        await self._mirrored.release(allocation)
        await self.release_token(allocation.node, allocation.token)

    async def release_token(self, node: NodeName, token: int) -> None:
        """Free our lock of a node with an agent, if the token holds it."""
        if self._binds_late.get(node, False):
            return
        failed = "Failed to release the node lock; it expires on its own"
        with log_failure(logger, failed, node=node):
            await self._lock.release(node, token)


def _left_s(deadline: float) -> float:
    return max(POLL_S, deadline - time.perf_counter())
