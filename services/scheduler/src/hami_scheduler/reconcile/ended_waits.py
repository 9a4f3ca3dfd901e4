"""End the waits of refused pods that were deleted, finished, or got a node.

The pod watch is the source of truth. Every two seconds the refusals that the ledger counts as
waiting are compared with the pods that exist, and the wait of each pod that is over is ended. How
long ago a pod was last asked about does not matter: while kube-scheduler is unavailable, it still
waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from cachetools import LRUCache
from hamicommon.domain.ids import PodUid
from hamicommon.k8s.types import JsonMapping

from hami_scheduler.ledger.state_machine import TERMINAL_PHASES
from hami_scheduler.ports.ledger import DecisionLog, OpenWait

COMPARE_INTERVAL_S = 2.0
MAX_DELETED = 20_000
"""Maximum number of deleted pods that are remembered, as a refusal may be recorded later."""


class WaitEnd(StrEnum):
    """Way in which a pod's wait ended (`decisions.wait_end`)."""

    DELETED = "deleted"
    GONE = "gone"
    """The pod was deleted while no scheduler watched, at an unknown time."""
    BOUND = "bound"
    FINISHED = "finished"


@dataclass(eq=False)
class EndedWaits:
    """Handler of deleted pods, and comparison with the ledger.

    `pods`: all that exist, once `listed`.
    """

    ledger: DecisionLog
    pods: Callable[[], Iterable[JsonMapping]]
    listed: Callable[[], bool]
    _deleted: LRUCache[PodUid, None] = field(
        default_factory=lambda: LRUCache(MAX_DELETED), init=False
    )

    def on_delete(self, pod: JsonMapping) -> None:
        """Record that the pod was deleted."""
        if not (pod.get("spec") or {}).get("nodeName"):
            self._deleted[PodUid(pod["metadata"]["uid"])] = None

    async def once(self) -> int:
        """Compare once; return the number of ended waits. Raises: Unavailable, Conflict."""
        if not self.listed():
            return 0
        waits = await self.ledger.open_waits()
        if not waits:
            return 0
        existing = {PodUid(pod["metadata"]["uid"]): pod for pod in self.pods()}
        ends = {
            wait.pod_uid: end
            for wait in waits
            if (end := self._end_of(wait, existing.get(wait.pod_uid))) is not None
        }
        if ends:
            await self.ledger.end_waits(ends)
        return len(ends)

    def _end_of(self, wait: OpenWait, pod: JsonMapping | None) -> WaitEnd | None:
        if pod is None:
            if wait.pod_uid in self._deleted:
                return WaitEnd.DELETED
            # The watch may be behind /filter, and show a new pod a little later.
            return WaitEnd.GONE if wait.is_watched else None
        if pod["metadata"].get("deletionTimestamp"):
            return WaitEnd.DELETED
        if (pod.get("spec") or {}).get("nodeName"):
            return WaitEnd.BOUND
        phase = (pod.get("status") or {}).get("phase")
        return WaitEnd.FINISHED if phase in TERMINAL_PHASES else None
