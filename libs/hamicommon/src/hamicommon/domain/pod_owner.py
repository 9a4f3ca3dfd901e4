"""The owner of a pod, kept with each of its grants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


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
