"""Containers that run on after their grant ended: reported, since only their node can end them.

In: an agent's report that a pod's processes live though its object is gone and its grant ended, as
after `released_unconfirmed`: the node was silent for too long, its slices were given back, and it
comes back with them in use. Their cards may be over-held until they end, and only the node can end
them. Counted, journalled, and shown in an event; containers that came since keep their own limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.pod_ref import PodRef

from hami_scheduler.drift import Drift, subject_of
from hami_scheduler.pod_events import RUNS_ON, Announcer

CLASS = "runs-without-grant"


@dataclass(eq=False, kw_only=True)
class OrphanReporter:
    """Reports them."""

    drift: Drift
    announcer: Announcer

    async def report(self, allocation: Allocation) -> None:
        """Of an allocation that is no longer live. Raises: Unavailable."""
        text = sentence(allocation)
        # First what may fail: the report comes again then.
        await self.drift.note(CLASS, subject_of(allocation), text, repaired=False)
        self.announcer.announce(PodRef.of(allocation), RUNS_ON, text)


def sentence(allocation: Allocation) -> str:
    """What is so, since when, and what would be right."""
    cards = sorted({share.uuid for each in allocation.containers for share in each.shares})
    return (
        f"its processes still run on {allocation.node} though its grant is {allocation.state} "
        f"({allocation.reason}): {', '.join(cards)} may be held twice until they end; end them on "
        "the node"
    )
