"""Compute how long pods have waited, by reason, and whether they would fit now.

In: the waiting pods, the view, and what the ledger has of their last decisions. Out: the moments
of `hami_pending_oldest_timestamp_seconds`. A pod that fits and is not placed is our fault, so
`true` is claimed only where it is certain: kube-scheduler offered every node with cards, the cards
are there, the agents speak and the quota has room. What may also be kept away by selectors or
taints is `unknown`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.placement.engine import decide
from hamicommon.placement.rules import NOT_ASKED, POD_REFUSED, reason_label
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.placement.waiting_pods import RequestShape, WaitingPod, WaitingPods
from hami_scheduler.ports.ledger import LastRefusal

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresQueries

# Each look costs about a millisecond of the event loop; pods of one shape share one.
MAX_SHAPES = 50
MAX_PODS = 5000


class Fits(StrEnum):
    """Whether a waiting pod would be placed now."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(eq=False, kw_only=True)
class WaitingFigures:
    """Compute metrics of waiting pods at each scrape.

    `silent`: nodes whose agents are silent; `is_grouped`: whether a pod waits for others, too;
    `clock`: Unix time.
    """

    view: ClusterState
    waiting: WaitingPods
    refusals: PostgresQueries
    vendors: Vendors
    silent: Callable[[], frozenset[NodeName]]
    bulkhead: Bulkhead
    is_grouped: Callable[[PodUid], bool] = lambda _: False
    clock: Callable[[], float] = time.time
    _fits_since: dict[PodUid, float] = field(default_factory=dict, init=False)

    async def oldest(self) -> Mapping[tuple[str, Fits], float]:
        """Return by last refusal and fit since when the oldest pod waits. Raises: Unavailable."""
        pods = self.waiting.in_order()[:MAX_PODS]
        if not pods:
            self._fits_since.clear()
            return {}
        last = await self.refusals.last_refusals([pod.uid for pod in pods])
        room = await self.refusals.quota_room()
        placements = await self._placements(pods)
        found: dict[tuple[str, Fits], float] = {}
        since: dict[PodUid, float] = {}
        for pod in pods:
            refusal = last.get(pod.uid)
            fits = self._fits(pod, refusal, placements, room)
            at = datetime.fromisoformat(pod.created_at).timestamp()
            if fits is Fits.TRUE:
                at = since[pod.uid] = self._fits_since.get(pod.uid, self.clock())
            reason = NOT_ASKED if refusal is None else reason_label(refusal.reason)
            key = (reason, fits)
            found[key] = min(at, found.get(key, at))
        self._fits_since = since
        return found

    async def _placements(self, pods: list[WaitingPod]) -> Mapping[RequestShape, Placement | None]:
        """Return each shape's placement now, for the first `MAX_SHAPES` shapes."""
        offered = tuple(name for name in self.view.cluster.nodes if name not in self.silent())
        found: dict[RequestShape, Placement | None] = {}
        for shape, pod in _first_of_each(pods):
            if len(found) == MAX_SHAPES:
                break
            with self.bulkhead.item("fitting", pod.uid):
                view = self.view.cluster
                found[shape] = decide(pod.request, view, candidates=offered).placement
            await asyncio.sleep(0)  # requests have their turn
        return found

    def _fits(
        self,
        pod: WaitingPod,
        last: LastRefusal | None,
        placements: Mapping[RequestShape, Placement | None],
        room: Mapping[tuple[str, str], int],
    ) -> Fits:
        shape = pod.shape
        if last is None or shape not in placements or self.is_grouped(pod.uid):
            return Fits.UNKNOWN
        placement = placements[shape]
        if placement is None or reason_label(last.reason) == POD_REFUSED:
            return Fits.FALSE
        for resource, amount in quota_amounts(placement.containers, self.vendors).items():
            if room.get((pod.namespace, resource), amount) < amount:
                return Fits.FALSE
        everywhere = last.candidates - last.unregistered >= len(self.view.cluster.nodes)
        return Fits.TRUE if everywhere else Fits.UNKNOWN


def _first_of_each(pods: list[WaitingPod]) -> Iterator[tuple[RequestShape, WaitingPod]]:
    seen: set[RequestShape] = set()
    for pod in pods:
        shape = pod.shape
        if shape not in seen:
            seen.add(shape)
            yield shape, pod
