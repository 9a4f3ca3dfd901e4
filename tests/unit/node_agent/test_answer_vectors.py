"""HAMi 2.10's Allocate answers, whole messages, from the protocol (5.7.1).

Ours must be equal after its one additional mount, the limits directory, is removed. A container's
variable switches limits off only on a node that allows it (`allow_disable_control`).
"""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pytest
from hami_node_agent.allocation.response import AnswerPolicy, container_response
from hami_node_agent.deviceplugin.servicer import answer_message
from hami_node_agent.devices.device_list import DeviceListPolicy, Feature, Strategy
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_container, a_grant, a_record, a_share

NONCE = "6f1d3d2e-6a4f-4b8e-9d53-0a6f0c1f2b11"
LIMITS = f"/var/lib/hami/node-agent/limits/{NONCE}"
VGPU = "/usr/local/vgpu"
DEVICES = "/var/run/nvidia-container-devices"
CDI = "k8s.device-plugin.nvidia.com"
ONE = (a_share(CARD_A, 4096, 30),)
TWO = (a_share(CARD_A, 4096, 30), a_share(CARD_B, 8192, 50))
INDEX = {CARD_A: 0, CARD_B: 1}
FILES = {
    "/dev/nvidiactl": "/dev/nvidiactl",
    "/dev/nvidia-uvm": "/dev/nvidia-uvm",
}
CARD_FILES = {
    CARD_A: [("/dev/nvidia0", "/dev/nvidia0")],
    CARD_B: [("/dev/nvidia1", "/dev/nvidia1")],
}

LIMITED_ONE = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{VGPU}/{NONCE}.cache",
    "LIBCUDA_LOG_LEVEL": "1",
}
LIMITED_TWO = LIMITED_ONE | {"CUDA_DEVICE_MEMORY_LIMIT_1": "8192m"}


def mount(inside: str, host: str, *, read_only: bool) -> api.Mount:
    return api.Mount(container_path=inside, host_path=host, read_only=read_only)


LIBRARY = mount(f"{VGPU}/libvgpu.so", f"{VGPU}/libvgpu.so.0.1.0", read_only=True)
CACHE = mount(VGPU, f"{VGPU}/containers/uid-1_main", read_only=True)
REGION = mount(
    f"{VGPU}/{NONCE}.cache", f"{VGPU}/containers/uid-1_main/{NONCE}.cache", read_only=False
)
PRELOAD = mount("/etc/ld.so.preload", f"{VGPU}/ld.so.preload", read_only=True)
LICENCE = mount("/tmp/license", f"{VGPU}/license", read_only=True)
VALIDATOR = mount("/usr/bin/vgpuvalidator", f"{VGPU}/vgpuvalidator", read_only=True)
HAMIS = (LIBRARY, CACHE, REGION, PRELOAD)


def null(name: str) -> api.Mount:
    return mount(f"{DEVICES}/{name}", "/dev/null", read_only=False)


def device(path: str) -> api.DeviceSpec:
    return api.DeviceSpec(container_path=path, host_path=path, permissions="rw")


@dataclass(frozen=True, kw_only=True)
class Vector:
    """A request, and HAMi's answer."""

    expect: api.ContainerAllocateResponse
    shares: tuple[Any, ...] = ONE
    list_by: DeviceListPolicy = field(default_factory=DeviceListPolicy)
    node: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def hami(envs: dict[str, str], *mounts: api.Mount, **more: Any) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(envs=envs, mounts=mounts or HAMIS, **more)


BOTH_CDI = frozenset({Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI})
EXTRAS: tuple[Feature, ...] = ("gdrcopy", "gds", "mofed")
VECTORS = {
    "one card": Vector(expect=hami(LIMITED_ONE | {"NVIDIA_VISIBLE_DEVICES": CARD_A})),
    "two cards": Vector(
        shares=TWO,
        expect=hami(LIMITED_TWO | {"NVIDIA_VISIBLE_DEVICES": f"{CARD_A},{CARD_B}"}),
    ),
    "two slices of one card name it once": Vector(
        shares=(ONE[0], ONE[0]),
        expect=hami(
            LIMITED_ONE | {"CUDA_DEVICE_MEMORY_LIMIT_1": "4096m", "NVIDIA_VISIBLE_DEVICES": CARD_A}
        ),
    ),
    "cards by index": Vector(
        shares=TWO,
        list_by=DeviceListPolicy(id_strategy="index", index_of=INDEX),
        expect=hami(LIMITED_TWO | {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
    ),
    "control switched off by the container": Vector(
        node={"allow_disable_control": True},
        env={"CUDA_DISABLE_CONTROL": "true"},
        expect=hami(LIMITED_ONE | {"NVIDIA_VISIBLE_DEVICES": CARD_A}, LIBRARY, CACHE, REGION),
    ),
    "control that the node does not let a container switch off": Vector(
        env={"CUDA_DISABLE_CONTROL": "true"},
        expect=hami(LIMITED_ONE | {"NVIDIA_VISIBLE_DEVICES": CARD_A}),
    ),
    "licensed node": Vector(
        node={"licensed": True},
        expect=hami(LIMITED_ONE | {"NVIDIA_VISIBLE_DEVICES": CARD_A}, *HAMIS, LICENCE, VALIDATOR),
    ),
    "oversubscribed, no core limit, another log level": Vector(
        node={"oversubscribe": True, "disable_core_limit": True, "log_level": "3"},
        expect=hami(
            LIMITED_ONE
            | {
                "NVIDIA_VISIBLE_DEVICES": CARD_A,
                "CUDA_OVERSUBSCRIBE": "true",
                "GPU_CORE_UTILIZATION_POLICY": "disable",
                "LIBCUDA_LOG_LEVEL": "3",
            }
        ),
    ),
    "an empty log level is not passed": Vector(
        node={"log_level": ""},
        expect=hami(
            {k: v for k, v in LIMITED_ONE.items() if k != "LIBCUDA_LOG_LEVEL"}
            | {"NVIDIA_VISIBLE_DEVICES": CARD_A}
        ),
    ),
    "device files": Vector(
        shares=TWO,
        list_by=DeviceListPolicy(device_files=FILES, card_files=CARD_FILES),
        expect=hami(
            LIMITED_TWO | {"NVIDIA_VISIBLE_DEVICES": f"{CARD_A},{CARD_B}"},
            devices=[
                device("/dev/nvidiactl"),
                device("/dev/nvidia-uvm"),
                device("/dev/nvidia0"),
                device("/dev/nvidia1"),
            ],
        ),
    ),
    "GDRCopy, GDS and MOFED": Vector(
        list_by=DeviceListPolicy(features=EXTRAS),
        expect=hami(
            LIMITED_ONE
            | {
                "NVIDIA_VISIBLE_DEVICES": CARD_A,
                "NVIDIA_GDRCOPY": "enabled",
                "NVIDIA_GDS": "enabled",
                "NVIDIA_MOFED": "enabled",
            }
        ),
    ),
    "IMEX channels": Vector(
        list_by=DeviceListPolicy(imex_channels=(0, 7)),
        expect=hami(
            LIMITED_ONE | {"NVIDIA_VISIBLE_DEVICES": CARD_A, "NVIDIA_IMEX_CHANNELS": "0,7"}
        ),
    ),
    "volume mounts": Vector(
        shares=TWO,
        list_by=DeviceListPolicy(
            strategies=frozenset({Strategy.VOLUME_MOUNTS}), imex_channels=(0,)
        ),
        expect=hami(
            LIMITED_TWO | {"NVIDIA_VISIBLE_DEVICES": DEVICES},
            null(CARD_A),
            null(CARD_B),
            null("imex/0"),
            *HAMIS,
        ),
    ),
    "volume mounts win over the variable": Vector(
        list_by=DeviceListPolicy(strategies=frozenset({Strategy.ENVVAR, Strategy.VOLUME_MOUNTS})),
        expect=hami(LIMITED_ONE | {"NVIDIA_VISIBLE_DEVICES": DEVICES}, null(CARD_A), *HAMIS),
    ),
    "CDI alone answers no variable and no file of its own": Vector(
        shares=TWO,
        list_by=DeviceListPolicy(
            strategies=BOTH_CDI,
            imex_channels=(3,),
            device_files=FILES,
            card_files=CARD_FILES,
            features=EXTRAS,
        ),
        expect=hami(
            LIMITED_TWO,
            annotations={
                f"cdi.k8s.io/nvidia-device-plugin_{NONCE}": (
                    f"{CDI}/gpu={CARD_A},{CDI}/gpu={CARD_B},{CDI}/imex-channel=3,"
                    f"{CDI}/gdrcopy=all,{CDI}/gds=all,{CDI}/mofed=all"
                )
            },
            cdi_devices=[
                api.CDIDevice(name=f"{CDI}/gpu={CARD_A}"),
                api.CDIDevice(name=f"{CDI}/gpu={CARD_B}"),
                api.CDIDevice(name=f"{CDI}/imex-channel=3"),
                api.CDIDevice(name=f"{CDI}/gdrcopy=all"),
                api.CDIDevice(name=f"{CDI}/gds=all"),
                api.CDIDevice(name=f"{CDI}/mofed=all"),
            ],
        ),
    ),
    "whole cards get what NVIDIA's plugin answers": Vector(
        node={"enforced": False},
        expect=api.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": CARD_A}),
    ),
    "CDI annotations beside the variable": Vector(
        list_by=DeviceListPolicy(
            strategies=frozenset({Strategy.ENVVAR, Strategy.CDI_ANNOTATIONS}),
        ),
        expect=hami(
            LIMITED_ONE | {"NVIDIA_VISIBLE_DEVICES": CARD_A},
            annotations={f"cdi.k8s.io/nvidia-device-plugin_{NONCE}": f"{CDI}/gpu={CARD_A}"},
        ),
    ),
}


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
def test_the_answer_is_hamis_and_one_mount_more(vector: Vector) -> None:
    record = a_record(a_grant(a_container(*vector.shares), pod="uid-1"), ids={"x"}, nonce=NONCE)
    policy = AnswerPolicy(
        container_base=PurePosixPath(VGPU),
        host_base=PurePosixPath(VGPU),
        library=PurePosixPath(f"{VGPU}/libvgpu.so.0.1.0"),
        devices=vector.list_by,
        **vector.node,
    )

    spec = container_response(record, limits_dir=LIMITS, container_env=vector.env, policy=policy)
    answer = answer_message(spec)
    ours = [each for each in answer.mounts if each.container_path == "/etc/hami"]
    for each in ours:
        answer.mounts.remove(each)

    assert ours == [mount("/etc/hami", LIMITS, read_only=True)]
    assert answer == vector.expect
