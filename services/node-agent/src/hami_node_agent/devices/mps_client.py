"""What an MPS client is given: where the daemon is, and its share of it (mode `mps`).

CUDA's variables: threads as a percentage of the card's, memory per device as the client counts
its devices, from 0. A process may change its own variables: memory is held by libvgpu as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hamicommon.domain.allocations import DeviceShare

from hami_node_agent.devices.device_list import MountSpec

CONTAINER_PIPES = "/tmp/nvidia-mps"
"""CUDA's default for CUDA_MPS_PIPE_DIRECTORY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPolicy:
    """Where the daemon's files are on the host."""

    pipe_dir: str
    shm_dir: str = ""
    """The daemon's /dev/shm, which its clients must have; empty: they share the host's IPC."""


def mps_envs(shares: Sequence[DeviceShare]) -> dict[str, str]:
    """The variables of a container with these slices; two of one card are one device."""
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
    """The daemon's pipes, and its shared memory."""
    mounts = [MountSpec(container_path=CONTAINER_PIPES, host_path=policy.pipe_dir, read_only=False)]
    if policy.shm_dir:
        mounts.append(
            MountSpec(container_path="/dev/shm", host_path=policy.shm_dir, read_only=False)
        )
    return tuple(mounts)
