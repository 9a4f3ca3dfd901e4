"""Whether a pod that is bound to this node may run here: resources and node selector.

As the kubelet's general predicates (`pkg/kubelet/lifecycle/predicate.go`), asked after the devices
have been allocated; `admission.py` rejects the pod with the answer. Resources that are not the
node's are passed over in init containers too, as since kubernetes#124273 (after 1.30).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hamicommon.k8s.types import Json

from kubelocal.pod_resources import PODS, Amounts, add, pod_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a pod may not run here, as the pod's status has it."""

    reason: str
    message: str


def check(
    pod: Json,
    others: Iterable[Amounts],
    *,
    allocatable: Amounts,
    labels: Mapping[str, str],
) -> Rejection | None:
    """The first predicate that fails, or None. Extended resources that the node does not list are
    not checked: they may be the cluster's."""
    used: Amounts = {PODS: 0}
    for other in others:
        used = add(used, {**other, PODS: 1})
    wanted = {PODS: 1} | {
        resource: amount
        for resource, amount in pod_requests(pod["spec"]).items()
        if amount > 0 and (resource in allocatable or "/" not in resource)
    }
    for resource, amount in wanted.items():
        capacity = allocatable.get(resource, 0)
        if used.get(resource, 0) + amount > capacity:
            return Rejection(
                reason=f"OutOf{resource}",
                message=f"Node didn't have enough resource: {resource}, requested: {amount}, "
                f"used: {used.get(resource, 0)}, capacity: {capacity}",
            )
    selector = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != wish for key, wish in selector.items()):
        return Rejection(reason="NodeAffinity", message="Predicate NodeAffinity failed")
    return None
