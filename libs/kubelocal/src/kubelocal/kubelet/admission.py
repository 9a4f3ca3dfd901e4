"""Decide whether a pod that is bound to this node may run: devices, then resources.

One pod at a time, one container after the other, as in the kubelet: this is what makes Allocate
calls of different pods never overlap. `kubelet.py` starts a `PodWorker` with the verdict.

The predicates are the kubelet's general ones (`pkg/kubelet/lifecycle/predicate.go`). Resources that
are not the node's are passed over in init containers too, as since kubernetes#124273 (after 1.30).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.devices.allocator import DeviceAllocator
from kubelocal.kubelet.devices.state import AdmissionError
from kubelocal.pod_resources import PODS, Amounts, add, amounts, pod_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Reason of a rejection, as in the pod's status."""

    reason: str
    message: str


def check_predicates(
    pod: Json,
    others: Iterable[Amounts],
    *,
    allocatable: Amounts,
    labels: Mapping[str, str],
) -> Rejection | None:
    """Return the first predicate that fails, or None.

    Extended resources that the node does not list are not checked: they may be the cluster's.
    """
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


class PodAdmission:
    """Admission of pods; `allocatable` and `labels` of the Node, `delay_s` a fault for tests."""

    def __init__(
        self,
        allocator: DeviceAllocator,
        *,
        allocatable: Callable[[], Mapping[str, str]],
        labels: Callable[[], Mapping[str, str]],
        delay_s: float = 0.0,
    ) -> None:
        self._allocator = allocator
        self._allocatable = allocatable
        self._labels = labels
        self._delay_s = delay_s

    async def admit(self, pod: Json, others: Iterable[Amounts]) -> Rejection | None:
        """Allocate the pod's devices, and check that it fits beside `others`."""
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        for container in pod_spec.all_containers(pod):
            try:
                await self._allocator.allocate(pod, container)
            except AdmissionError as exc:
                return Rejection(
                    reason="UnexpectedAdmissionError",
                    message=f"Allocate failed due to {exc}, which is unexpected",
                )
        allocatable = amounts(self._allocatable())
        book = self._allocator.book
        if book.has_pod(pod_spec.uid(pod)):
            # Devices that are held count as present even while their plugin is unavailable.
            for resource, count in book.held_counts().items():
                allocatable[resource] = max(allocatable.get(resource, 0), count)
        return check_predicates(pod, others, allocatable=allocatable, labels=self._labels())
