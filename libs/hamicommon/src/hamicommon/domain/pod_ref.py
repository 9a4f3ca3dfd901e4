"""A pod by all its names, as everything that writes about one needs it."""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import PodUid


@dataclass(frozen=True, slots=True)
class PodRef:
    """Namespace, name and uid of a pod; the uid distinguishes it from another pod of that name."""

    namespace: str
    name: str
    uid: PodUid

    @classmethod
    def of(cls, allocation: Allocation) -> PodRef:
        """The pod that has the allocation."""
        return cls(allocation.namespace, allocation.pod_name, PodUid(allocation.pod_uid))
