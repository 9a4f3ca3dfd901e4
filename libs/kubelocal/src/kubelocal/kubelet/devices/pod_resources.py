"""What PodResources answers: pods, their regular containers, and the device ids these hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.devices.state import DeviceBook

Held = tuple[tuple[str, tuple[str, ...]], ...]
"""(resource, ids) for each resource and NUMA node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDevices:
    """One pod with its regular containers; init containers are not listed, as in the kubelet."""

    name: str
    namespace: str
    containers: tuple[tuple[str, Held], ...]


def snapshot(pods: Iterable[Json], book: DeviceBook) -> list[PodDevices]:
    """The answer to List; a pod whose Allocate has not returned yet shows no ids."""
    return [
        PodDevices(
            name=pod_spec.name(pod),
            namespace=pod_spec.namespace(pod),
            containers=tuple(
                (container["name"], _held(pod_spec.uid(pod), container["name"], book))
                for container in pod_spec.app_containers(pod)
            ),
        )
        for pod in pods
    ]


def _held(pod_uid: str, container: str, book: DeviceBook) -> Held:
    return tuple(
        (allocation.resource, ids)
        for allocation in book.of_container(pod_uid, container)
        for ids in allocation.ids_by_numa.values()
    )
