"""Bookings: cards reserved in memory for a short time, for pods that will be created soon.

A booking is an assumption of a future pod (`cluster_state.py`), under its own id. The first pod of
the workload that reaches /filter with the same request takes a booking's place. Nothing is in the
ledger: after a change of the active scheduler the pods compete as all do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Literal

from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.k8s.annotations import KUEUE_WORKLOAD, annotations_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Draft

from hami_scheduler.ledger.cluster_state import ClusterState

BookingEnd = Literal["used", "expired", "lost"]


class Bookings:
    """Bookings (reserved cards) of each Kueue workload, by its uid."""

    def __init__(
        self, state: ClusterState, on_end: Callable[[BookingEnd], None] = lambda _: None
    ) -> None:
        """Create the bookings; `on_end` is called for each booking that ends."""
        self._state = state
        self._on_end = on_end
        self._booked: dict[str, dict[PodUid, PodRequest]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._booked.values()))

    def book(self, workload: str, requests: Iterable[PodRequest], drafts: Iterable[Draft]) -> None:
        """Turn the assumptions just made for these requests into bookings of the workload."""
        pairs = zip(requests, drafts, strict=True)
        self._booked[workload] = {draft.pod_uid: request for request, draft in pairs}

    def drop(self, workload: str) -> bool:
        """Drop the workload's bookings; return whether any cards were freed."""
        booked = self._booked.pop(workload, {})
        for _ in booked:
            self._on_end("lost")
        return self._state.lift(booked)

    def take(self, pod: JsonMapping, request: PodRequest, offered: Collection[NodeName]) -> None:
        """Free one booking on an offered node, for a pod of its workload that is being placed."""
        for uid, wanted in self._booked_for(pod).items():
            assumed = self._state.assumption(uid)
            if (
                assumed is not None
                and assumed.draft.placement.node in offered
                and wanted.containers == request.containers
            ):
                self._take(pod, [uid])
                return

    def take_all(self, pod: JsonMapping) -> None:
        """Free all bookings of the pod's workload, as the pod's whole group was just placed."""
        self._take(pod, list(self._booked_for(pod)))

    def left_out(self, pod: JsonMapping) -> AbstractContextManager[None]:
        """Hide the bookings of the pod's workload from the cards' usage inside a block."""
        return self._state.without(self._booked_for(pod))

    def _take(self, pod: JsonMapping, uids: Collection[PodUid]) -> None:
        booked = self._booked_for(pod)
        self._state.lift(uids)
        for uid in uids:
            del booked[uid]
            self._on_end("used")

    def _booked_for(self, pod: JsonMapping) -> dict[PodUid, PodRequest]:
        """Return the bookings of the pod's workload if they are of the pod's namespace."""
        booked = self._booked.get(annotations_of(pod).get(KUEUE_WORKLOAD, ""), {})
        namespace = pod["metadata"].get("namespace") or "default"
        return booked if all(each.namespace == namespace for each in booked.values()) else {}

    def keep(self, workloads: Collection[str]) -> None:
        """Drop the bookings of all other workloads, and those past their deadline."""
        freed = [self.drop(each) for each in self._booked.keys() - workloads]
        for workload, booked in list(self._booked.items()):
            for uid in [uid for uid in booked if self._state.assumption(uid) is None]:
                del booked[uid]
                self._on_end("expired")
            if not booked:
                del self._booked[workload]
        if any(freed):
            self._state.notify_freed()
