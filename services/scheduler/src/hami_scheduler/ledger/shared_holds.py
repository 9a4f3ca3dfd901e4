"""Which pods of this replica are on their way to a node under one hold of its lock.

Allocate does not name its pod, so the lock lets one pod at a time between bind and Allocate. Of
pods whose grants differ in nothing but the pod (the same card, the same amounts) it does not
matter who gets which answer: PreStartContainer finds out, and exchanges two files. Nor does it of
pods that have one slice each of the same amounts, on any cards, where the agent has two grants
exchanged in the ledger then. So the next of them joins the hold, and the lock is freed when the
last one has its cards. A hold can be joined for a moment only, so that other pods of the node, and
other replicas, have their turn.

Another replica that takes the report of the one that took the lock frees it, though others of its
hold are on their way: it knows nothing of them. An answer may then be given to another pod than was
meant, as without any lock; PreStartContainer lets no container start with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hamicommon.domain.allocations import Allocation, DeviceShare
from hamicommon.domain.ids import AllocationId, NodeName

JOINED_WITHIN_S = 1.0
"""As long after its begin a hold can be joined. From then on waiters of other replicas ask the
ledger whether the one who took the lock still needs it."""


@dataclass(slots=True, kw_only=True)
class _Hold:
    shape: str
    token: int
    """Under which the lock is held."""
    joined_until_s: float
    members: dict[AllocationId, int] = field(default_factory=dict)
    """Tokens of the pods that are on their way."""


class SharedHolds:
    """The holds of this replica, by node."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock`: monotonic seconds."""
        # Looked up when it is read: a simulation has a clock of its own.
        self._clock = clock or (lambda: time.monotonic())
        self._holds: dict[NodeName, _Hold] = {}
        self._taking: dict[tuple[NodeName, str], asyncio.Event] = {}

    def join(self, allocation: Allocation, shape: str) -> bool:
        """Whether the allocation may go now, under a hold that is there."""
        hold = self._holds.get(allocation.node)
        if hold is None or not shape or hold.shape != shape or allocation.token is None:
            return False
        if self._clock() >= hold.joined_until_s:
            return False
        hold.members[allocation.id] = allocation.token
        return True

    def taking(self, node: NodeName, shape: str) -> asyncio.Event | None:
        """Set when another pod of the shape has the lock or has given it up; None: nobody waits."""
        return self._taking.get((node, shape)) if shape else None

    @contextmanager
    def being_taken(self, node: NodeName, shape: str) -> Iterator[None]:
        """While the lock is waited for on behalf of all pods of the shape."""
        key, done = (node, shape), asyncio.Event()
        if shape:
            self._taking[key] = done
        try:
            yield
        finally:
            if shape:
                del self._taking[key]
            done.set()

    def begin(self, allocation: Allocation, shape: str) -> None:
        """The allocation has the lock of its node; a hold before it has ended or was lost."""
        if not shape or allocation.token is None:
            self._holds.pop(allocation.node, None)
            return
        self._holds[allocation.node] = _Hold(
            shape=shape,
            token=allocation.token,
            joined_until_s=self._clock() + JOINED_WITHIN_S,
            members={allocation.id: allocation.token},
        )

    def has(self, node: NodeName, token: int) -> bool:
        """Whether the token's pod is on its way under a hold."""
        hold = self._holds.get(node)
        return hold is not None and token in hold.members.values()

    def leave(self, node: NodeName, token: int) -> int | None:
        """Under which token the lock is to be freed; None: others go under it still."""
        hold = self._holds.get(node)
        if hold is None:
            return token
        gone = [each for each, held in hold.members.items() if held == token]
        for each in gone:
            del hold.members[each]
        if not gone:
            # Somebody else's, or freed before: the lock itself knows whose it is.
            return None if token == hold.token else token
        if hold.members:
            return None
        del self._holds[node]
        return hold.token


def shape_of(allocation: Allocation, *, template: bool = False) -> str:
    """Equal for allocations that differ in nothing but the pod, and with `template` the card of
    their only slice; empty: like no other.

    What only a vendor understands (a MIG device) is a container's own.
    """
    shares = [share for c in allocation.containers for share in c.shares]
    if any(share.detail for share in shares):
        return ""
    any_card = template and len(shares) == 1
    return repr(
        [
            (
                c.index,
                c.name,
                c.role,
                ["" if any_card else s.uuid for s in c.shares],
                [(s.vendor, s.type, *_amounts(s)) for s in c.shares],
            )
            for c in allocation.containers
        ]
    )


def _amounts(share: DeviceShare) -> tuple[int, int, int]:
    return share.memory_mib, share.core_percent, share.slots
