"""Rooms in memory for /filter: cards reserved for waiting pods by preemption.

A room is a grant in state `reserved`. The ledger is the truth; `preemption/loop.py` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hamicommon.domain.ids import PodUid

from hami_scheduler.ports.ledger import HeldRoom


class Rooms:
    """Rooms (reserved cards) of waiting pods, by pod."""

    def __init__(self) -> None:
        self._by_pod: dict[PodUid, HeldRoom] = {}

    def of(self, pod_uid: PodUid) -> HeldRoom | None:
        """Return the pod's room; None if no cards are reserved for the pod."""
        return self._by_pod.get(pod_uid)

    def replace(self, rooms: Iterable[HeldRoom]) -> None:
        """Replace all rooms by those read from the ledger."""
        self._by_pod = {room.pod_uid: room for room in rooms}

    def __iter__(self) -> Iterator[HeldRoom]:
        return iter(list(self._by_pod.values()))

    def __len__(self) -> int:
        return len(self._by_pod)
