"""State of a container's limits, as its node sees it from outside.

`hami_node_agent/enforcement` decides it from what the driver reports of each process; the scheduler
keeps the history (`limit_periods`). Listed from the best to the worst.
"""

from __future__ import annotations

from enum import StrEnum


class LimitState(StrEnum):
    """State of the limits of one container on one card."""

    ENFORCED = "enforced"
    """The container holds no more than it may, and all its processes there use the library."""
    UNKNOWN = "unknown"
    """The amounts that its processes hold, or the owner of a process, can't be known."""
    BYPASSED = "bypassed"
    """The container uses a card of which it has no grant, or uses one past the library."""
    EXCEEDED = "exceeded"
    """The container's processes hold more than its grant and what may come on top of it."""

    @property
    def severity(self) -> int:
        """Severity from 0 (good) to 3 (worst)."""
        return _SEVERITY[self]

    @property
    def violates(self) -> bool:
        """Whether the container violates its limits; False if that is unknown."""
        return self in (LimitState.BYPASSED, LimitState.EXCEEDED)


_SEVERITY = {state: severity for severity, state in enumerate(LimitState)}
