"""Identity and owner of a pod."""

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
        """Return the pod of an allocation."""
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
    """Deployment of the ReplicaSet that controls the pod; empty if there is none."""
    service_account: str = ""
    """Service account in the pod's namespace."""
    created_by: str | None = None
    """User who created the pod, as the API server authenticated them; None: unknown.

    A person, or the service account of a controller. The webhook writes it.
    """
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Labels of the pod that the operator chose to keep."""
