"""Values of the device-plugin side: devices, their allocations, and what Allocate answered.

`state.py` holds them, `checkpoint.py` writes them down, `containers/environment.py` and
`containers/mounts.py` use the answer when a container starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device id of a plugin, as its ListAndWatch stream sent it last."""

    id: str
    healthy: bool
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """What a plugin asked for; `None` in place of it: not (yet) registered since our start."""

    pre_start_required: bool = False
    preferred_allocation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of the host that a container sees at another path."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device file that a container may open."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateAnswer:
    """The decoded ContainerAllocateResponse; `raw` is kept for the checkpoint, byte for byte."""

    raw: bytes = b""
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    """Qualified names; what they stand for is read when the container is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAllocation:
    """Ids of one resource held by one container, and the plugin's answer for them."""

    pod_uid: str
    container: str
    resource: str
    ids_by_numa: Mapping[int, tuple[str, ...]]
    answer: AllocateAnswer

    @property
    def ids(self) -> frozenset[str]:
        """All ids, whichever NUMA node they belong to."""
        return frozenset(i for ids in self.ids_by_numa.values() for i in ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCounts:
    """What the Node object shows of one resource."""

    capacity: int
    allocatable: int


class AdmissionError(Exception):
    """A device allocation failed; the text is the message in the pod's status."""


class PluginError(Exception):
    """A call to a device plugin failed; the text is the kubelet's wording of it."""
