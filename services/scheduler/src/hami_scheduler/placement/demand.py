"""What pods that come to /filter leave behind: who waits, and how often which shape arrives.

Which pods are usual, for the node policy `fragmentation`, is counted here and kept by the ledger.
Every pod counts once, when /filter first sees it. The ledger's latest decisions have what those
pods asked for: a restarted replica reads them, and so does, now and then, one that another has
decided in place of (`hamicommon.placement.cluster.arrivals` does the counting).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.arrivals import HALF_LIFE, shape_of
from hamicommon.placement.cluster.view import ClusterView

from hami_scheduler.placement.waiting_pods import WaitingPods
from hami_scheduler.ports.ledger import DecisionLog

ARRIVALS_AGAIN_S = 600.0
_LATER = 500
"""Decisions that are read again: as many as others may have made in that time."""
_AT_ONCE = 100
"""Decisions that are read before others have their turn: some milliseconds."""
_MOST_PODS = 4 * HALF_LIFE
"""Pods that are known to be counted; the oldest are forgotten."""


class ArrivalCounts:
    """Counts each pod once, however often it comes to /filter."""

    def __init__(self, cluster: ClusterView, decisions: DecisionLog) -> None:
        self._cluster = cluster
        self._decisions = decisions
        self._counted: OrderedDict[PodUid, None] = OrderedDict()
        self.restored = False
        """True once the ledger has been read."""

    def saw(self, request: PodRequest) -> None:
        """A pod is to be placed."""
        if request.uid in self._counted:
            return
        self._counted[request.uid] = None
        if len(self._counted) > _MOST_PODS:
            self._counted.popitem(last=False)
        shape = shape_of(request)
        if shape is not None:
            self._cluster.usual.saw(shape)

    async def restore(self) -> None:
        """Counts the pods of the ledger's latest decisions, oldest first. Raises: Unavailable."""
        latest = await self._decisions.arrivals(_LATER if self.restored else HALF_LIFE)
        for number, request in enumerate(reversed(latest)):
            self.saw(request)
            if number % _AT_ONCE == 0:
                # Requests have their turn in between: thousands are counted.
                await asyncio.sleep(0)
        self.restored = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The pods that ask for cards, one by one and by shape."""

    waiting: WaitingPods
    arrivals: ArrivalCounts

    def saw(self, pod: Json, request: PodRequest) -> None:
        """A pod came to /filter."""
        self.waiting.saw(pod, request)
        self.arrivals.saw(request)
