"""The node lock in memory (port NodeLock)."""

import asyncio
from collections.abc import Callable

from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict
from hamicommon.ledger.model import LockHolder


class FakeNodeLock:
    """One holder per node; `clock` (seconds) decides when a lock expires."""

    def __init__(self, *, lock_s: float = 30.0, clock: Callable[[], float] | None = None) -> None:
        self._lock_s = lock_s
        self._clock = clock
        self._held: dict[NodeName, tuple[LockHolder, float]] = {}
        self._changed = asyncio.Condition()

    async def acquire(self, node: NodeName, holder: LockHolder, *, wait_s: float) -> None:
        """See the port."""
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._free_for(node, holder))
                self._held[node] = (holder, self._now() + self._lock_s)
        except TimeoutError:
            raise Conflict(f"node {node} was being bound to another pod") from None

    async def release(self, node: NodeName, token: int) -> bool:
        """See the port."""
        async with self._changed:
            held = self._current(node)
            if held is None or held.token != token:
                return False
            del self._held[node]
            self._changed.notify_all()
            return True

    async def holder(self, node: NodeName) -> LockHolder | None:
        """See the port."""
        return self._current(node)

    def _free_for(self, node: NodeName, holder: LockHolder) -> bool:
        held = self._current(node)
        return held is None or holder.may_replace(held)

    def _current(self, node: NodeName) -> LockHolder | None:
        held = self._held.get(node)
        if held is None or held[1] <= self._now():
            return None
        return held[0]

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()
