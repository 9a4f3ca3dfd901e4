"""The answer of HAMi 2.10's NVIDIA plugin, as the kubelet keeps it (protocol 5.7.1)."""

from collections.abc import Mapping
from uuid import uuid4

from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

VGPU = "/usr/local/vgpu"


def hami_answer(
    pod_uid: str,
    container: str,
    memory_mib: Mapping[str, int],
    *,
    core_percent: int = 0,
    base: str = VGPU,
    lock_dir: str = "/tmp/vgpulock",
) -> api.ContainerAllocateResponse:
    """In hami-core mode with the envvar strategy; `memory_mib` by card, in order."""
    limits = {
        f"CUDA_DEVICE_MEMORY_LIMIT_{position}": f"{amount}m"
        for position, amount in enumerate(memory_mib.values())
    }
    mounts = (
        (f"{VGPU}/libvgpu.so", f"{base}/libvgpu.so.v2.10.0", True),
        (VGPU, f"{base}/containers/{pod_uid}_{container}", False),
        ("/tmp/vgpulock", lock_dir, False),
        ("/etc/ld.so.preload", f"{base}/ld.so.preload", True),
    )
    return api.ContainerAllocateResponse(
        envs={
            "NVIDIA_VISIBLE_DEVICES": ",".join(memory_mib),
            **limits,
            "CUDA_DEVICE_SM_LIMIT": str(core_percent),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{VGPU}/{uuid4()}.cache",
            "LIBCUDA_LOG_LEVEL": "1",
        },
        mounts=[
            api.Mount(container_path=inside, host_path=host, read_only=read_only)
            for inside, host, read_only in mounts
        ],
    )
