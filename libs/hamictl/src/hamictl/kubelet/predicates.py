"""Whether a pod that is bound to this node may run here: resources and node selector.

As the kubelet's general predicates (`pkg/kubelet/lifecycle/predicate.go`), asked after the devices
have been allocated; `admission.py` rejects the pod with the answer. Resources that are not the
node's are passed over in init containers too, as since kubernetes#124273 (after 1.30).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hamictl.kubelet import pod_spec, quantities
from hamictl.kubelet.pod_spec import Json

Amounts = dict[str, int]
"""By resource: CPU in thousandths, memory in bytes, the rest in units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a pod may not run here, in the words of the pod's status."""

    reason: str
    message: str


def amounts(given: Mapping[str, str | int]) -> Amounts:
    """A resource list in comparable numbers."""
    return {
        resource: quantities.milli_value(amount) if resource == "cpu" else quantities.value(amount)
        for resource, amount in given.items()
    }


def requested(pod: Json) -> Amounts:
    """What the pod occupies: its containers together, or its largest init container."""
    total: Amounts = {}
    for container in pod_spec.app_containers(pod):
        _add(total, _requests(container))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod_spec.init_containers(pod):
        if pod_spec.is_sidecar(pod, container):
            _add(sidecars, _requests(container))
            continue
        needed = dict(sidecars)
        _add(needed, _requests(container))
        peak = {r: max(peak.get(r, 0), needed.get(r, 0)) for r in peak | needed}
    _add(total, sidecars)
    total = {r: max(total.get(r, 0), peak.get(r, 0)) for r in total | peak}
    _add(total, amounts(pod["spec"].get("overhead") or {}))
    return total


def _requests(container: Json) -> Amounts:
    resources = container.get("resources") or {}
    # A missing request equals the limit; the API server's defaulting says the same.
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _add(total: Amounts, more: Amounts) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount


def check(
    pod: Json,
    others: Iterable[Amounts],
    *,
    allocatable: Amounts,
    labels: Mapping[str, str],
) -> Rejection | None:
    """The first predicate that fails, or None. Extended resources that the node does not list are
    not checked: they may be the cluster's."""
    used: Amounts = {"pods": 0}
    for other in others:
        _add(used, other)
        used["pods"] += 1
    wanted = {"pods": 1} | {
        resource: amount
        for resource, amount in requested(pod).items()
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
