import base64
from typing import Any

import pytest
from hami_node_agent.adapters.kubelet.state import kept_answer
from hami_node_agent.grants.ports import ForeignAnswer, KeptAnswer
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

from tests.hami.answers import hami_answer


def read(answer: api.ContainerAllocateResponse) -> Any:
    return kept_answer(base64.b64encode(answer.SerializeToString()).decode())


def test_hamis_answer_has_cards_limits_and_where_its_region_is() -> None:
    answer = hami_answer("uid", "main", {"GPU-a": 4096, "GPU-b": 2048}, core_percent=30)

    assert read(answer) == ForeignAnswer(
        visible=("GPU-a", "GPU-b"),
        memory_mib=(4096, 2048),
        core_percent=30,
        cache_dir="uid_main",
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            {
                "envs": {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
                "mounts": [
                    api.Mount(
                        container_path="/var/run/nvidia-container-devices/GPU-a",
                        host_path="/dev/null",
                    )
                ],
            },
            id="volume-mounts",
        ),
        pytest.param(
            {"cdi_devices": [api.CDIDevice(name="k8s.device-plugin.nvidia.com/gpu=GPU-a")]},
            id="cdi-cri",
        ),
        pytest.param(
            {
                "annotations": {
                    "cdi.k8s.io/nvidia-device-plugin_x": "k8s.device-plugin.nvidia.com/gpu=GPU-a"
                }
            },
            id="cdi-annotations",
        ),
    ],
)
def test_every_device_list_strategy_names_the_cards(change: dict[str, Any]) -> None:
    limits = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_SM_LIMIT": "30"}
    envs = limits | change.pop("envs", {})

    found = read(api.ContainerAllocateResponse(envs=envs, **change))

    assert (found.visible, found.memory_mib) == (("GPU-a",), (4096,))


@pytest.mark.parametrize(
    "envs",
    [
        pytest.param({}, id="no limit: NVIDIA's own plugin"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT_0": "4g"}, id="a unit that HAMi does not write"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT_1": "4096m"}, id="the first one is missing"),
    ],
)
def test_an_answer_without_hamis_limits_has_none(envs: dict[str, str]) -> None:
    found = read(api.ContainerAllocateResponse(envs=envs | {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}))

    assert (found.visible, found.memory_mib, found.core_percent) == (("GPU-a",), (), None)


def test_ours_is_known_by_its_limits_directory() -> None:
    answer = api.ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a"},
        mounts=[api.Mount(container_path="/etc/hami", host_path="/var/lib/hami/limits/nonce")],
    )

    assert isinstance(read(answer), KeptAnswer)
    assert kept_answer("") is None


@pytest.mark.parametrize(
    "answer",
    [
        api.ContainerAllocateResponse(cdi_devices=[api.CDIDevice(name="hami.io/slice=6f1d")]),
        api.ContainerAllocateResponse(annotations={"cdi.k8s.io/hami-slice": "hami.io/slice=6f1d"}),
    ],
    ids=["field", "annotation"],
)
def test_one_that_is_bound_late_has_its_nonce_alone(answer: api.ContainerAllocateResponse) -> None:
    assert read(answer) == KeptAnswer(nonce="6f1d", cards=(), cache_dir="")


@pytest.mark.parametrize("text", ["not base64!", base64.b64encode(b"\xff\xff\xff").decode()])
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="AllocResp"):
        kept_answer(text)
