from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hami_node_agent.domain.container_spec import (
    AnswerPolicy,
    ContainerSpec,
    MountSpec,
    container_response,
    core_policy,
)

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_container, a_grant, a_record, a_share

NONCE = "6f1d3d2e-6a4f-4b8e-9d53-0a6f0c1f2b11"
LIMITS = f"/var/lib/hami/node-agent/limits/{NONCE}"
POLICY = AnswerPolicy(
    container_base=PurePosixPath("/usr/local/vgpu"),
    host_base=PurePosixPath("/usr/local/vgpu"),
    library=PurePosixPath("/usr/local/vgpu/libvgpu.so.0.1.0"),
    lock_dir=PurePosixPath("/tmp/vgpulock"),
)
RECORD = a_record(
    a_grant(a_container(a_share(CARD_A, 4096, 30), a_share(CARD_B, 8192, 50)), pod="uid-1"),
    ids={f"{CARD_A}-0", f"{CARD_B}-0"},
    nonce=NONCE,
)
PRELOAD = MountSpec(
    container_path="/etc/ld.so.preload",
    host_path="/usr/local/vgpu/ld.so.preload",
    read_only=True,
)


def response(policy: AnswerPolicy = POLICY, **env: str) -> ContainerSpec:
    return container_response(RECORD, limits_dir=LIMITS, container_env=env, policy=policy)


def test_the_whole_answer_of_a_container_with_two_slices() -> None:
    assert response() == ContainerSpec(
        envs={
            "NVIDIA_VISIBLE_DEVICES": f"{CARD_A},{CARD_B}",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
            "CUDA_DEVICE_MEMORY_LIMIT_1": "8192m",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"/usr/local/vgpu/{NONCE}.cache",
            "LIBCUDA_LOG_LEVEL": "1",
        },
        mounts=(
            MountSpec(
                container_path="/usr/local/vgpu/libvgpu.so",
                host_path="/usr/local/vgpu/libvgpu.so.0.1.0",
                read_only=True,
            ),
            MountSpec(
                container_path="/usr/local/vgpu",
                host_path="/usr/local/vgpu/containers/uid-1_main",
                read_only=False,
            ),
            MountSpec(container_path="/tmp/vgpulock", host_path="/tmp/vgpulock", read_only=False),
            MountSpec(container_path="/etc/hami", host_path=LIMITS, read_only=True),
            PRELOAD,
        ),
    )


@pytest.mark.parametrize("value", ["1", "t", "T", "true", "TRUE", "True"])
def test_a_container_may_switch_control_off(value: str) -> None:
    assert PRELOAD not in response(CUDA_DISABLE_CONTROL=value).mounts


@pytest.mark.parametrize("value", ["", "0", "false", "yes", "tRUE"])
def test_anything_but_gos_true_leaves_control_on(value: str) -> None:
    assert PRELOAD in response(CUDA_DISABLE_CONTROL=value).mounts


def test_oversubscription_and_no_core_limit_are_said_in_the_env() -> None:
    policy = replace(POLICY, oversubscribe=True, disable_core_limit=True, log_level="")

    envs = response(policy).envs

    assert envs["CUDA_OVERSUBSCRIBE"] == "true"
    assert envs["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert "LIBCUDA_LOG_LEVEL" not in envs


def test_a_licensed_node_mounts_licence_and_validator() -> None:
    extra = set(response(replace(POLICY, licensed=True)).mounts) - set(response().mounts)

    assert extra == {
        MountSpec(
            container_path="/tmp/license", host_path="/usr/local/vgpu/license", read_only=True
        ),
        MountSpec(
            container_path="/usr/bin/vgpuvalidator",
            host_path="/usr/local/vgpu/vgpuvalidator",
            read_only=True,
        ),
    }


def test_device_files_are_those_of_the_granted_cards() -> None:
    policy = replace(
        POLICY,
        device_files={"/dev/nvidiactl": "/dev/nvidiactl"},
        card_files={
            CARD_A: ("/dev/nvidia0", "/dev/nvidia0"),
            "GPU-other": ("/dev/nvidia5", "/dev/nvidia5"),
        },
    )

    assert response(policy).device_files == (
        ("/dev/nvidiactl", "/dev/nvidiactl"),
        ("/dev/nvidia0", "/dev/nvidia0"),
    )


@pytest.mark.parametrize(
    ("env", "disabled", "policy"),
    [
        ({}, False, "default"),
        ({"GPU_CORE_UTILIZATION_POLICY": "FORCE"}, False, "force"),
        ({"GPU_CORE_UTILIZATION_POLICY": "nonsense"}, False, "default"),
        ({"GPU_CORE_UTILIZATION_POLICY": "force"}, True, "disable"),
    ],
)
def test_the_nodes_switch_wins_over_the_containers_wish(
    env: dict[str, str], disabled: bool, policy: str
) -> None:
    assert core_policy(env, disable_core_limit=disabled) == policy
