"""Whether a pod that was bound to this node may run here: devices first, then resources.

One pod at a time, one container after the other, as in the kubelet: this is what makes Allocate
calls of different pods never overlap. `kubelet.py` starts a `PodWorker` with the verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.devices.allocator import DeviceAllocator
from kubelocal.kubelet.devices.types import AdmissionError
from kubelocal.kubelet.pods import predicates
from kubelocal.kubelet.pods.predicates import Rejection
from kubelocal.pod_resources import Amounts, amounts


class PodAdmission:
    """`allocatable` and `labels` are those of the Node object; `delay_s` is a fault for tests."""

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
        """Allocates the pod's devices and checks that it fits beside `others`."""
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
            # Devices that are held count as present even while their plugin is away.
            for resource, count in book.held_counts().items():
                allocatable[resource] = max(allocatable.get(resource, 0), count)
        return predicates.check(pod, others, allocatable=allocatable, labels=self._labels())
