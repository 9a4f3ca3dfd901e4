"""Pods in which something undoes a slice, and what admission answers to them."""

from typing import Any

from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.verdicts import AdmissionResult, AdmissionRules
from hamicommon.device_config import DeviceConfig, NvidiaConfig
from hamicommon.vendors.registry import Vendors

GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"


SLICE = {GPU: 1, MEM: 4096}


def rules(policy: TamperingPolicy | None = None, **nvidia: Any) -> AdmissionRules:
    config = DeviceConfig(nvidia=NvidiaConfig(**nvidia))
    return AdmissionRules(
        vendors=Vendors.from_config(config),
        scheduler_name="hami-scheduler",
        tampering=policy or TamperingPolicy(),
    )


def pod(part: str = "containers", *, limits: Any = SLICE, spec: Any = None, **more: Any) -> Any:
    """A pod with a slice whose other container has `more`."""
    found: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"limits": limits}}],
        **(spec or {}),
    }
    if more:
        found[part] = [*found.get(part, ()), {"name": "other", **more}]
    return {"metadata": {"name": "p", "namespace": "team"}, "spec": found}


def env(name: str, value: str) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value}]}


def mount(path: str, volume: str = "v") -> dict[str, Any]:
    return {"volumeMounts": [{"name": volume, "mountPath": path}]}


def adds(*capabilities: str) -> dict[str, Any]:
    return {"securityContext": {"capabilities": {"add": list(capabilities)}}}


def expect_refusal(given_: Any, installed: AdmissionRules | None = None) -> AdmissionResult:
    verdict = mutate(given_, installed or rules())
    assert not verdict.allowed
    assert verdict.code == 403
    assert verdict.patch == []
    assert verdict.message.isprintable()
    return verdict


UNDOING = [
    env("CUDA_DISABLE_CONTROL", "true"),
    env("CUDA_DISABLE_CONTROL", "1"),
    env("CUDA_DEVICE_MEMORY_LIMIT", "70g"),
    env("CUDA_DEVICE_MEMORY_LIMIT_0", "70g"),
    env("CUDA_DEVICE_MEMORY_LIMIT_63", "1"),
    env("CUDA_DEVICE_SM_LIMIT", "100"),
    env("CUDA_DEVICE_SM_LIMIT_1", "100"),
    env("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/mine"),
    env("CUDA_OVERSUBSCRIBE", "true"),
    env("GPU_CORE_UTILIZATION_POLICY", "disable"),
    env("GPU_CORE_UTILIZATION_POLICY", "DISABLE"),
    env("GPU_CORE_UTILIZATION_POLICY", " disable\n"),
    env("NVIDIA_VISIBLE_DEVICES", "all"),
    env("NVIDIA_VISIBLE_DEVICES", "0"),
    env("NVIDIA_VISIBLE_DEVICES", "GPU-1"),
    env("NVIDIA_VISIBLE_DEVICES", "$(OTHER)"),
    env("LD_AUDIT", "/tmp/hide.so"),
    env("LD_PRELOAD", "/usr/lib/libjemalloc.so:/tmp/x/libcuda.so.1"),
    env("LD_PRELOAD", "libnvidia-ml.so.1"),
    {"env": [{"name": "CUDA_DISABLE_CONTROL", "valueFrom": {"configMapKeyRef": {}}}]},
    {"env": [{"name": "CUDA_DISABLE_CONTROL", "value": "$(OTHER)"}]},
    {"env": [{"name": "A", "value": "b"}, {"name": "CUDA_DISABLE_CONTROL", "value": "t"}]},
    mount("/etc/ld.so.preload"),
    mount("/etc/../etc/ld.so.preload"),
    mount("/etc/ld.so.preload/"),
    mount("//etc/ld.so.preload"),
    mount("etc/ld.so.preload"),
    mount("/etc/hami"),
    mount("/etc/hami/limits"),
    mount("/etc"),
    mount("/"),
    mount("/usr/local/vgpu"),
    mount("/usr/local/vgpu/libvgpu.so"),
    mount("/usr/local"),
    mount("/var/run/nvidia-container-devices/all"),
    mount("/run/nvidia-container-devices/GPU-1"),
    {"volumeDevices": [{"name": "v", "devicePath": "/etc/hami/limits"}]},
    adds("SYS_ADMIN"),
    adds("NET_ADMIN", "cap_sys_admin"),
    adds("ALL"),
    adds("SYS_MODULE"),
    adds("DAC_READ_SEARCH"),
]
