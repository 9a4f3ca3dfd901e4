"""What the ledger in memory has written: allocations, their history, and how both are read.

`FakeLedger` adds what changes them. The reading is that of the port LedgerReader.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import AllocationId, NodeName, PodUid

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One line of a pod's history."""

    sequence: int
    previous_state: str | None
    state: str
    reason: str


class LedgerRows:
    """Allocations and their history, in dictionaries."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allocations: dict[AllocationId, Allocation] = {}
        self._bound_at: dict[AllocationId, datetime] = {}
        self._events: dict[PodUid, list[RecordedEvent]] = {}

    def history(self, pod_uid: PodUid) -> list[RecordedEvent]:
        """The pod's events in order."""
        return list(self._events.get(pod_uid, ()))

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """See the port."""
        return self._allocations.get(allocation_id)

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """See the port."""
        return self._live_of(pod_uid)

    async def latest_of(self, pod_uid: PodUid) -> Allocation | None:
        """See the port."""
        mine = [a for a in self._allocations.values() if a.pod_uid == pod_uid]
        return max(mine, key=lambda a: a.attempt, default=None)

    async def live(self, node: NodeName | None = None) -> list[Allocation]:
        """See the port."""
        return [
            a for a in self._allocations.values() if a.live and (node is None or a.node == node)
        ]

    async def standing(self) -> AsyncIterator[list[Allocation]]:
        """See the port."""
        for one in await self.live():
            yield [replace(one, containers=())]

    async def standing_of(self, pod_uids: Sequence[PodUid]) -> list[Allocation]:
        """See the port."""
        live = (self._live_of(uid) for uid in pod_uids)
        return [replace(one, containers=()) for one in live if one is not None]

    async def whole(self, ids: Sequence[AllocationId]) -> list[Allocation]:
        """See the port."""
        return [self._allocations[one] for one in ids if one in self._allocations]

    async def overdue(self) -> list[Allocation]:
        """See the port."""
        now = self._clock()
        return [
            a
            for a in self._allocations.values()
            if a.live and a.deadline is not None and a.deadline < now
        ]

    async def late(self, after_s: float) -> list[Allocation]:
        """See the port."""
        before = self._clock() - timedelta(seconds=after_s)
        return [
            a
            for a in self._allocations.values()
            if a.state is AllocationState.BOUND and self._bound_at[a.id] < before
        ]

    def _live_of(self, pod_uid: PodUid) -> Allocation | None:
        mine = (a for a in self._allocations.values() if a.pod_uid == pod_uid and a.live)
        return next(mine, None)

    def _note(self, allocation: Allocation, before: str | None, reason: str) -> int:
        events = self._events.setdefault(allocation.pod_uid, [])
        events.append(RecordedEvent(len(events) + 1, before, allocation.state.value, reason))
        return len(events)
