"""Device ids and their holders: the state of the device manager, without I/O.

Rules as in kubelet 1.20's device manager (`pkg/kubelet/cm/devicemanager`): ids are picked at random
unless the plugin prefers some; ids of an init container are reused for the containers that follow;
ids of ended pods are freed lazily, before the next allocation; a resource whose plugin is gone
keeps its capacity with allocatable 0, and loses both after a grace period. `allocator.py` makes the
gRPC calls between `request()` and `keep()`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device id of a plugin, with its last health from ListAndWatch."""

    id: str
    healthy: bool
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """Options of a plugin; `None` in place of them: not registered since our start."""

    pre_start_required: bool = False
    preferred_allocation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Host's file or folder that a container sees at another path."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """Device file that a container may open."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateAnswer:
    """Decoded ContainerAllocateResponse; `raw` is stored in the checkpoint unchanged."""

    raw: bytes = b""
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    """Qualified names of CDI devices, resolved when the container is created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAllocation:
    """Ids of one resource that one container holds, and the plugin's answer for them."""

    pod_uid: str
    container: str
    resource: str
    ids_by_numa: Mapping[int, tuple[str, ...]]
    answer: AllocateAnswer

    @property
    def ids(self) -> frozenset[str]:
        """All ids, of all NUMA nodes."""
        return frozenset(i for ids in self.ids_by_numa.values() for i in ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCounts:
    """Counts of one resource, as the Node object shows them."""

    capacity: int
    allocatable: int


class AdmissionError(Exception):
    """Error: a device allocation failed; the message is that of the pod's status."""


class PluginError(Exception):
    """Error: a call to a device plugin failed; the message is the kubelet's."""


# Time for which the kubelet still shows the capacity of a plugin that is gone.
STOPPED_GRACE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRequest:
    """Request for a container's ids; `preset` are reused from the pod's init containers."""

    pod_uid: str
    container: str
    resource: str
    size: int
    preset: frozenset[str]
    available: frozenset[str]

    @property
    def complete(self) -> bool:
        """Whether the reused ids suffice, so that no others are chosen."""
        return len(self.preset) == self.size


class DeviceBook:
    """Devices by resource, and allocations by (pod uid, container, resource)."""

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, Device]] = {}
        self._options: dict[str, PluginOptions | None] = {}
        self._stopped_at: dict[str, float] = {}
        self._retired: set[str] = set()
        self._allocations: dict[tuple[str, str, str], DeviceAllocation] = {}
        self._held: dict[str, set[str]] = {}
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})

    # Plugins

    def register(self, resource: str, options: PluginOptions) -> None:
        """Record a plugin's registration; its devices come with the first `update`."""
        self._options[resource] = options
        self._devices.setdefault(resource, {})
        self._stopped_at.pop(resource, None)
        self._retired.discard(resource)

    def update(self, resource: str, devices: Iterable[Device]) -> None:
        """Replace the plugin's list of devices."""
        self._devices[resource] = {device.id: device for device in devices}

    def lose(self, resource: str, *, now_s: float) -> None:
        """Mark all devices unhealthy, because the plugin's stream has ended."""
        self._devices[resource] = {
            device.id: Device(id=device.id, healthy=False, numa_nodes=device.numa_nodes)
            for device in self._devices.get(resource, {}).values()
        }
        self._stopped_at[resource] = now_s

    def retire_stopped(self, *, now_s: float) -> bool:
        """Drop resources whose plugin has been gone for the grace period; return True for any."""
        gone = [r for r, at in self._stopped_at.items() if now_s - at > STOPPED_GRACE_S]
        for resource in gone:
            del self._stopped_at[resource]
            self._devices.pop(resource, None)
            self._options.pop(resource, None)
            self._retired.add(resource)
        return bool(gone)

    def options(self, resource: str) -> PluginOptions | None:
        """Return the plugin's options; None if it has not registered since our start."""
        return self._options.get(resource)

    def counts(self) -> dict[str, DeviceCounts]:
        """Return capacity and allocatable of every resource; a retired one shows 0."""
        counts = {
            resource: DeviceCounts(
                capacity=len(devices), allocatable=sum(d.healthy for d in devices.values())
            )
            for resource, devices in self._devices.items()
        }
        return counts | {r: DeviceCounts(capacity=0, allocatable=0) for r in self._retired}

    def serves(self, resource: str) -> bool:
        """Return whether a plugin serves the resource, or a pod holds ids of it."""
        return resource in self._devices or resource in self._held

    # Allocation of ids

    def begin(self, pod_uid: str) -> None:
        """Begin a pod's admission: only ids of the same pod's init containers may be reused."""
        if self._reusable[0] != pod_uid:
            self._reusable = (pod_uid, {})

    def release_all_but(self, active_pod_uids: Iterable[str]) -> bool:
        """Free the ids of pods that are no longer active; return True for any."""
        active = set(active_pod_uids)
        ended = [key for key in self._allocations if key[0] not in active]
        for key in ended:
            del self._allocations[key]
        if ended:
            self._recount()
        return bool(ended)

    def request(self, pod_uid: str, container: str, resource: str, size: int) -> IdRequest | None:
        """Return the ids to choose from; None if the container has its ids already.

        Raises: AdmissionError if there are not enough healthy free ids, or the amount changed.
        """
        held = self._allocations.get((pod_uid, container, resource))
        if held is not None and len(held.ids) != size:
            raise AdmissionError(
                f'pod "{pod_uid}" container "{container}" changed request for resource '
                f'"{resource}" from {len(held.ids)} to {size}'
            )
        if held is not None or size == 0:
            return None
        if resource not in self._devices:
            raise AdmissionError(f"can't allocate unregistered device {resource}")
        reusable = self._reusable[1].get(resource, set())
        preset = frozenset(sorted(reusable)[:size])
        healthy = {d.id for d in self._devices[resource].values() if d.healthy}
        available = frozenset(healthy - self._held.get(resource, set()) - preset)
        needed = size - len(preset)
        if len(available) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        return IdRequest(
            pod_uid=pod_uid,
            container=container,
            resource=resource,
            size=size,
            preset=preset,
            available=available,
        )

    def keep(
        self, request: IdRequest, ids: Iterable[str], answer: AllocateAnswer
    ) -> DeviceAllocation:
        """Record an allocation that the plugin has answered."""
        devices = self._devices.get(request.resource, {})
        by_numa: dict[int, list[str]] = {}
        for device_id in sorted(ids):
            device = devices.get(device_id)
            # A device without topology is written under node 0, as the kubelet does.
            for numa in (device.numa_nodes if device else ()) or (0,):
                by_numa.setdefault(numa, []).append(device_id)
        allocation = DeviceAllocation(
            pod_uid=request.pod_uid,
            container=request.container,
            resource=request.resource,
            ids_by_numa={numa: tuple(ids) for numa, ids in by_numa.items()},
            answer=answer,
        )
        self._add(allocation)
        return allocation

    def offer_for_reuse(self, pod_uid: str, container: str) -> None:
        """Let the pod's next containers reuse the ids of an ordinary init container."""
        for allocation in self.of_container(pod_uid, container):
            self._reusable[1].setdefault(allocation.resource, set()).update(allocation.ids)

    def withdraw_from_reuse(self, pod_uid: str, container: str) -> None:
        """Keep the ids of a container that runs beside the others."""
        for allocation in self.of_container(pod_uid, container):
            self._reusable[1].get(allocation.resource, set()).difference_update(allocation.ids)

    # Reading and restoring

    def of_container(self, pod_uid: str, container: str) -> list[DeviceAllocation]:
        """Return a container's allocations by resource."""
        return [
            allocation
            for (uid, name, _), allocation in self._allocations.items()
            if uid == pod_uid and name == container
        ]

    def has_pod(self, pod_uid: str) -> bool:
        """Return whether a container of the pod holds ids."""
        return any(uid == pod_uid for uid, _, _ in self._allocations)

    def held_counts(self) -> dict[str, int]:
        """Return the number of held ids by resource."""
        return {resource: len(ids) for resource, ids in self._held.items()}

    def allocations(self) -> list[DeviceAllocation]:
        """Return all allocations in order."""
        return list(self._allocations.values())

    def healthy_ids(self) -> dict[str, list[str]]:
        """Return healthy ids by resource, for the checkpoint's RegisteredDevices."""
        return {
            resource: sorted(d.id for d in devices.values() if d.healthy)
            for resource, devices in self._devices.items()
        }

    def restore(
        self, allocations: Iterable[DeviceAllocation], resources: Iterable[str], *, now_s: float
    ) -> None:
        """Restore allocations after a restart; capacity is 0 until the plugins register again."""
        for allocation in allocations:
            self._add(allocation)
        for resource in resources:
            self._devices[resource] = {}
            self._options[resource] = None
            self._stopped_at[resource] = now_s

    def _add(self, allocation: DeviceAllocation) -> None:
        key = (allocation.pod_uid, allocation.container, allocation.resource)
        self._allocations[key] = allocation
        self._held.setdefault(allocation.resource, set()).update(allocation.ids)

    def _recount(self) -> None:
        self._held = {}
        for allocation in self._allocations.values():
            self._held.setdefault(allocation.resource, set()).update(allocation.ids)


def choose(request: IdRequest, preferred: Iterable[str], chance: random.Random) -> frozenset[str]:
    """Choose the ids of a request: reused ones, then preferred free ones, then random ones."""
    wanted = [i for i in dict.fromkeys(preferred) if i in request.available]
    others = sorted(request.available - set(wanted))
    chance.shuffle(others)
    needed = request.size - len(request.preset)
    return request.preset | frozenset((wanted + others)[:needed])
