"""Which replicas reserve at present, as far as this one knows: by its own calls and the ledger's
events.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from hamicommon.domain.ids import AllocationId

KNOWN_S = 5.0
"""So long after a reservation its replica is known to reserve."""
STANDS_BY_S = 60.0
"""So long after another's reservation a replica without any of its own stands by: bursts come with
pauses, and what a replica asked the bus for before the first of them would be for the other."""
MOST_KNOWN = 10_000
"""Names that are remembered, the latest."""

Name = TypeVar("Name", bound=str)


class Reservers:
    """This replica, and the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._own: OrderedDict[AllocationId, None] = OrderedDict()
        self._own_at_s = self._others_at_s = float("-inf")

    def note_own(self, allocation_id: AllocationId) -> None:
        """This replica reserves."""
        remember(self._own, allocation_id)
        self._own_at_s = self._clock()

    def note(self, allocation_id: AllocationId) -> None:
        """Somebody has reserved, by the ledger's events."""
        if allocation_id not in self._own:
            self._others_at_s = self._clock()

    def others(self) -> bool:
        """Whether another replica reserves."""
        return self._clock() - self._others_at_s < KNOWN_S

    def stands_by(self) -> bool:
        """Whether another one does and this one does not: kube-scheduler calls that one alone."""
        now_s = self._clock()
        return now_s - self._others_at_s < STANDS_BY_S and now_s - self._own_at_s >= KNOWN_S


def remember(known: OrderedDict[Name, None], name: Name) -> None:
    """Adds a name; the oldest of too many goes."""
    known[name] = None
    if len(known) > MOST_KNOWN:
        known.popitem(last=False)
