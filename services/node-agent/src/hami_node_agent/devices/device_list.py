"""Name a container's cards for the container runtime (protocol 5.7.1).

NVIDIA's four strategies, which may be combined. Input: cards and the node's policy. Output: the
part of an Allocate answer that NVIDIA's own plugin would give; `allocation/response.py` puts HAMi's
part behind it.

Clients of the MPS daemon also get its location and their share: threads as a percentage of the
card's, memory per device as the client counts its devices, from 0. A process may change its own
variables, so libvgpu limits memory as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from hamicommon.domain.allocations import DeviceShare

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VISIBLE_MOUNTS = "/var/run/nvidia-container-devices"
"""Value of the variable, and folder of mounts, with the strategy `volume-mounts`."""
CDI_VENDOR = "k8s.device-plugin.nvidia.com"
CDI_ANNOTATION = "cdi.k8s.io/nvidia-device-plugin"
Feature = Literal["gdrcopy", "gds", "mofed"]


class Strategy(StrEnum):
    """Way in which cards are named for the runtime."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


_CDI = frozenset({Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI})


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """One bind mount."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Allocate answer as a domain value; `servicer.py` converts it to protobuf."""

    envs: Mapping[str, str]
    mounts: tuple[MountSpec, ...]
    device_files: tuple[tuple[str, str], ...] = ()
    """Device files as (container path, host path), for reading and writing."""
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cdi_devices: tuple[str, ...] = ()
    """Qualified names of CDI devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceListPolicy:
    """Settings of the node for naming cards."""

    strategies: frozenset[Strategy] = frozenset({Strategy.ENVVAR})
    id_strategy: Literal["uuid", "index"] = "uuid"
    index_of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """NVML index by card uuid, for the id strategy `index`."""
    imex_channels: tuple[int, ...] = ()
    features: tuple[Feature, ...] = ()
    """Enabled extra features."""
    device_files: Mapping[str, str] | None = None
    """Control files as container path -> host path, with PASS_DEVICE_SPECS."""
    card_files: Mapping[str, Sequence[tuple[str, str]]] | None = None
    """Device's files as (container path, host path) by uuid, with PASS_DEVICE_SPECS."""

    @property
    def all_cdi(self) -> bool:
        """Whether cards are named only by CDI."""
        return self.strategies <= _CDI


def device_list(
    devices: Sequence[str], *, response_id: str, policy: DeviceListPolicy
) -> ContainerSpec:
    """Return the answer for these devices (cards or MIG instances).

    `response_id` distinguishes the CDI annotations of several plugins on one pod.
    """
    unique = tuple(dict.fromkeys(devices))
    ids = unique
    if policy.id_strategy == "index":
        ids = tuple(str(policy.index_of[d]) if d in policy.index_of else d for d in unique)
    names = _cdi_names(ids, policy) if policy.strategies & _CDI else ()
    annotations = {}
    if Strategy.CDI_ANNOTATIONS in policy.strategies:
        annotations[f"{CDI_ANNOTATION}_{response_id}"] = ",".join(names)
    return ContainerSpec(
        envs={} if policy.all_cdi else _envs(ids, policy),
        mounts=_mounts(ids, policy),
        device_files=() if policy.all_cdi else _device_files(unique, policy),
        annotations=annotations,
        cdi_devices=names if Strategy.CDI_CRI in policy.strategies else (),
    )


def _cdi_names(ids: Sequence[str], policy: DeviceListPolicy) -> tuple[str, ...]:
    return (
        *(f"{CDI_VENDOR}/gpu={device_id}" for device_id in ids),
        *(f"{CDI_VENDOR}/imex-channel={channel}" for channel in policy.imex_channels),
        *(f"{CDI_VENDOR}/{feature}=all" for feature in policy.features),
    )


def _envs(ids: Sequence[str], policy: DeviceListPolicy) -> dict[str, str]:
    envs = {}
    if Strategy.ENVVAR in policy.strategies:
        envs[VISIBLE] = ",".join(ids)
        if policy.imex_channels:
            envs["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, policy.imex_channels))
    if Strategy.VOLUME_MOUNTS in policy.strategies:
        envs[VISIBLE] = VISIBLE_MOUNTS
    envs |= {f"NVIDIA_{feature.upper()}": "enabled" for feature in policy.features}
    return envs


def _mounts(ids: Sequence[str], policy: DeviceListPolicy) -> tuple[MountSpec, ...]:
    if Strategy.VOLUME_MOUNTS not in policy.strategies:
        return ()
    names = [*ids, *(f"imex/{channel}" for channel in policy.imex_channels)]
    return tuple(
        MountSpec(container_path=f"{VISIBLE_MOUNTS}/{name}", host_path="/dev/null", read_only=False)
        for name in names
    )


def _device_files(devices: Sequence[str], policy: DeviceListPolicy) -> tuple[tuple[str, str], ...]:
    if policy.device_files is None:
        return ()
    by_device = policy.card_files or {}
    files = list(policy.device_files.items())
    files += [file for device in devices for file in by_device.get(device, ())]
    return tuple(dict.fromkeys(files))


CONTAINER_PIPES = "/tmp/nvidia-mps"
"""Default of CUDA_MPS_PIPE_DIRECTORY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPolicy:
    """Paths of the MPS daemon's files on the host."""

    pipe_dir: str
    shm_dir: str = ""
    """Folder that is the daemon's /dev/shm, which clients need; empty: they use the host's IPC."""


def mps_envs(shares: Sequence[DeviceShare]) -> dict[str, str]:
    """Return the variables of a container with these slices; two of one card are one device."""
    memory_mib: dict[str, int] = {}
    for share in shares:
        memory_mib[share.uuid] = memory_mib.get(share.uuid, 0) + share.memory_mib
    envs = {"CUDA_MPS_PIPE_DIRECTORY": CONTAINER_PIPES}
    limited = [f"{n}={amount}M" for n, amount in enumerate(memory_mib.values()) if amount]
    if limited:
        envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limited)
    # One number for all devices of a client: the smallest share is what none of them exceeds.
    percent = min(share.core_percent or 100 for share in shares)
    if percent < 100:
        envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
    return envs


def mps_mounts(policy: MpsPolicy) -> tuple[MountSpec, ...]:
    """Return the mounts of the daemon's pipes and shared memory."""
    mounts = [MountSpec(container_path=CONTAINER_PIPES, host_path=policy.pipe_dir, read_only=False)]
    if policy.shm_dir:
        mounts.append(
            MountSpec(container_path="/dev/shm", host_path=policy.shm_dir, read_only=False)
        )
    return tuple(mounts)
