"""Rows of the ledger in memory: allocations, their history, and the reading of both.

`FakeLedger` adds what changes them. The reading is that of the port LedgerReader.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ClaimedSlice,
    SliceKey,
)
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

    def _pass_on(self, old: Allocation) -> set[SliceKey]:
        """Count the slices of one that ends for the others that hold them; return those."""
        found = set()
        others = [a for a in self._allocations.values() if a.live and a.id != old.id]
        others.sort(key=lambda a: (a.reserved_at, a.id))
        heirs: dict[AllocationId, list[ClaimedSlice]] = {}
        for slice_ in (each for each in old.claims if each.counted):
            for other in others:
                own = next((each for each in other.claims if each.key == slice_.key), None)
                if own is not None:
                    found.add(own.key)
                    heirs.setdefault(other.id, []).append(own)
                    break
        for identity, taken in heirs.items():
            self._count_for(self._allocations[identity], taken, old.pod_name)
        return found

    def _count_for(self, heir: Allocation, taken: Sequence[ClaimedSlice], of: str) -> None:
        containers = tuple(
            replace(
                container,
                shares=(
                    *container.shares,
                    *(each.share for each in taken if each.container == container.index),
                ),
            )
            for container in heir.containers
        )
        claims = tuple(replace(each, counted=each.counted or each in taken) for each in heir.claims)
        now = self._clock()
        new = replace(heir, containers=containers, claims=claims, reserved_at=now)
        self._allocations[heir.id] = new
        self._note(
            new, heir.state.value, f"shares the slices that are already counted for pod {of}"
        )

    def _note(self, allocation: Allocation, before: str | None, reason: str) -> int:
        events = self._events.setdefault(allocation.pod_uid, [])
        events.append(RecordedEvent(len(events) + 1, before, allocation.state.value, reason))
        return len(events)
