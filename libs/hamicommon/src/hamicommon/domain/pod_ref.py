"""A pod by all its names, as everything that writes about one needs it, and its owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOwner:
    """Controller, service account, creator and labels of a pod.

    All but `created_by` is the pod's own statement: who may create a pod chooses its owner
    references, its labels, and any service account of its namespace.
    """

    kind: str = ""
    """Kind of the controller, `ReplicaSet` or `Job`; empty: the pod has none."""
    name: str = ""
    uid: str = ""
    deployment: str = ""
    """The Deployment of that ReplicaSet; empty: it has none."""
    service_account: str = ""
    """In the pod's namespace."""
    created_by: str | None = None
    """Creator of the pod, as the API server authenticated him: a person, or the controller's
    service account. None: the webhook did not see its creation."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Labels that the operator chose to keep."""
