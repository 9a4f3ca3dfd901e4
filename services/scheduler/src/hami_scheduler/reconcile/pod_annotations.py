"""Keep pods' annotations equal to the ledger, of which they are a copy (architecture 2.4).

The reconciler calls this for every pod that has its cards and whose object changed since it was
last found equal. Before a difference is reported, the pod is read from the API server, because the
watch may lag. Differences are written again, counted and journalled. Only lasting annotations are
compared: the vendors' `allocated` keys, and the reservations of MIG slices once our agent has
reported the instances for them (HAMi's plugin writes those into the pod itself). Device plugins
consume `to-allocate` values and answer in `bind-phase`, as HAMi's protocol defines (sheet 2.7).

The binder writes the label after the binding when it is idle (`background_queue.py`). A label that
is missing at two comparisons was lost with its binder, and is written here. A write that the API
server refuses (a policy, an object that has become invalid) is journalled, and retried when the pod
changes or after five minutes: the ledger holds without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Forbidden, InvalidRequest, NotFound
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.vendors.interface.vendor import Vendor

from hami_scheduler.drift import Drift, subject_of
from hami_scheduler.pod_events import LogLimit, PodMarks
from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import AllocationStore
from hami_scheduler.reconcile.annotation_diff import differing

# After a start all pods must be looked at: not all in one go.
MAX_LOOKS = 2000
CLASS = "annotations-differ"
REFUSED = "annotations-refused"
MAX_REFUSAL_LENGTH = 1024
"""Maximum characters of the API server's message."""
REFUSAL_RETRY_S = 300.0
_MIRRORED = frozenset({AllocationState.BOUND, AllocationState.ALLOCATED})


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Refusal of a pod's change by the API server."""

    version: str
    """Version of the pod when it was refused."""
    why: str
    again_at: float


@dataclass(eq=False, kw_only=True)
class Mirrors:
    """Compare pods with their rows."""

    store: AllocationStore
    pods: PodApi
    vendors: Iterable[Vendor]
    drift: Drift
    log_limit: LogLimit
    """Limit of journal lines about a pod whose author changes it repeatedly."""
    marks: PodMarks
    clock: Callable[[], float] = time.monotonic
    _refused: dict[PodUid, _Refusal] = field(default_factory=dict, init=False)
    _right: dict[PodUid, str] = field(default_factory=dict, init=False)
    """Version of each pod that was found correct."""
    _unlabelled: set[PodUid] = field(default_factory=set, init=False)
    """Pods that lacked their label at the last check."""
    _looks: int = field(default=0, init=False)

    def due(self, allocation: Allocation, pod: JsonMapping) -> bool:
        """Return whether the pod must be compared with its complete row."""
        on_its_node = (pod.get("spec") or {}).get("nodeName") == allocation.node
        if not on_its_node or allocation.state not in _MIRRORED:
            return False
        version = _version(pod)
        if self._right.get(allocation.pod_uid) == version or self._looks >= MAX_LOOKS:
            return False
        refused = self._refused.get(allocation.pod_uid)
        if refused and refused.version == version and self.clock() < refused.again_at:
            return False
        self._looks += 1
        return True

    async def check(self, row: Allocation, pod: JsonMapping) -> int:
        """Repair the pod's annotations; return 1 if they differed, otherwise 0.

        `row` is the whole row, as it was a moment ago. Raises: Conflict, Unavailable.
        """
        version = _version(pod)
        repaired = 0
        try:
            if differing(row, annotations_of(pod), self.vendors):
                fresh = await self.store.get(row.id)
                repaired = 0 if fresh is None else await self.repair(fresh)
            if await self._ensure_label(row, pod):
                self._right[row.pod_uid] = version
            self._refused.pop(row.pod_uid, None)
        except (InvalidRequest, Forbidden) as exc:
            await self._note_refusal(row, version, str(exc))
        return repaired

    async def _note_refusal(self, allocation: Allocation, version: str, why: str) -> None:
        before = self._refused.get(allocation.pod_uid)
        again_at = self.clock() + REFUSAL_RETRY_S
        self._refused[allocation.pod_uid] = _Refusal(version, why, again_at)
        if before is not None and before.why == why:
            return
        why = clip(why, MAX_REFUSAL_LENGTH)
        if self.log_limit.take(allocation.pod_uid, why) is None:
            return
        await self.drift.note(REFUSED, subject_of(allocation), why, repaired=False)

    async def _ensure_label(self, allocation: Allocation, pod: JsonMapping) -> bool:
        """Set the label if it was missing twice in a row; return False the first time.

        Raises: Conflict, Unavailable.
        """
        wanted = self.marks.labels(allocation)
        if wanted.items() <= (pod["metadata"].get("labels") or {}).items():
            self._unlabelled.discard(allocation.pod_uid)
            return True
        if allocation.pod_uid not in self._unlabelled:
            self._unlabelled.add(allocation.pod_uid)
            return False
        with suppress(NotFound):
            await self.pods.annotate(PodRef.of(allocation), labels=wanted)
        return True

    async def repair(self, row: Allocation) -> int:
        """Correct the pod's annotations at the API server; return 1 if they were wrong.

        Raises: Conflict, Unavailable.
        """
        try:
            pod = await self.pods.get(row.namespace, row.pod_name)
            wrong = differing(row, annotations_of(pod), self.vendors)
            if pod["metadata"]["uid"] != row.pod_uid or not wrong:
                return 0
            await self.pods.annotate(PodRef.of(row), annotations=wrong)
        except NotFound:
            return 0
        found = annotations_of(pod)
        detail = "; ".join(
            f"{key} was '{clip(found.get(key, 'missing'))}', the ledger has '{clip(value)}'"
            for key, value in wrong.items()
        )
        if self.log_limit.take(row.pod_uid, detail) is None:
            self.drift.count(CLASS)
        else:
            await self.drift.note(CLASS, subject_of(row), detail, repaired=True)
        return 1

    def doubt(self, uid: PodUid) -> None:
        """Check the pod again, because its row has changed."""
        self._right.pop(uid, None)
        self._refused.pop(uid, None)

    def keep(self, uids: Collection[PodUid]) -> None:
        """Forget all other pods, after all were compared."""
        self._looks = 0
        self._right = {uid: seen for uid, seen in self._right.items() if uid in uids}
        self._refused = {uid: each for uid, each in self._refused.items() if uid in uids}
        self.drift.show_standing(REFUSED, len(self._refused))
        self._unlabelled &= set(uids)


def _version(pod: JsonMapping) -> str:
    return str(pod["metadata"].get("resourceVersion", ""))
