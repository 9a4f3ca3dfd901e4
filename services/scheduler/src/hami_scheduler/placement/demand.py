"""What pods that come to /filter leave behind: who waits, and how often which shape arrives."""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.domain.requests import PodRequest
from hamicommon.k8s.types import Json

from hami_scheduler.placement.arrival_counts import ArrivalCounts
from hami_scheduler.placement.waiting_pods import WaitingPods


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The pods that ask for cards, one by one and by shape."""

    waiting: WaitingPods
    arrivals: ArrivalCounts

    def saw(self, pod: Json, request: PodRequest) -> None:
        """A pod came to /filter."""
        self.waiting.saw(pod, request)
        self.arrivals.saw(request)
