import base64

import orjson
import pytest
from hami_node_agent.adapters.kubelet.state import mounted_paths, read_checkpoint
from hami_node_agent.grants.ports import Holding, KeptAnswer
from hamicommon.errors import InvalidRequest
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

RESOURCE = "nvidia.com/gpu"
ANSWER = api.ContainerAllocateResponse(
    envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"},
    mounts=[
        api.Mount(container_path="/etc/hami", host_path="/var/lib/hami/limits/nonce-1"),
        api.Mount(container_path="/usr/local/vgpu", host_path="/usr/local/vgpu/containers/u_main"),
    ],
)


def checkpoint(ids: object, answer: bytes, resource: str = RESOURCE) -> bytes:
    entry = {
        "PodUID": "u",
        "ContainerName": "main",
        "ResourceName": resource,
        "DeviceIDs": ids,
        "AllocResp": base64.b64encode(answer).decode(),
    }
    data = {"PodDeviceEntries": [entry], "RegisteredDevices": {}}
    return orjson.dumps({"Data": data, "Checksum": 1})


@pytest.mark.parametrize(
    "ids",
    [["GPU-a-0", "GPU-b-1"], {"0": ["GPU-a-0"], "1": ["GPU-b-1"]}, {"-1": ["GPU-a-0", "GPU-b-1"]}],
)
def test_ids_come_as_a_list_or_by_numa_node(ids: object) -> None:
    [holding] = read_checkpoint(checkpoint(ids, ANSWER.SerializeToString()), RESOURCE)

    assert holding == Holding(
        pod_uid="u",
        container="main",
        device_ids=frozenset({"GPU-a-0", "GPU-b-1"}),
        answer=KeptAnswer(nonce="nonce-1", cards=("GPU-a", "GPU-b"), cache_dir="u_main"),
    )


def test_an_answer_that_is_not_ours_is_no_answer() -> None:
    [holding] = read_checkpoint(checkpoint(["GPU-a-0"], b""), RESOURCE)

    assert holding.answer is None


def test_other_resources_are_left_out_and_a_fresh_kubelet_has_no_entries() -> None:
    assert read_checkpoint(checkpoint([], b"", "example.com/nic"), RESOURCE) == ()
    empty = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 0}
    assert read_checkpoint(orjson.dumps(empty), RESOURCE) == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"Data": 3}', b'{"Data": null}'])
def test_a_damaged_checkpoint_is_reported_as_damaged(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a device checkpoint"):
        read_checkpoint(content, RESOURCE)


def test_paths_of_every_resources_answers_are_mounted() -> None:
    content = checkpoint(["x"], ANSWER.SerializeToString(), "example.com/nic")

    assert mounted_paths(content) == {
        "/var/lib/hami/limits/nonce-1",
        "/usr/local/vgpu/containers/u_main",
    }
    with pytest.raises(InvalidRequest, match="not a device checkpoint"):
        mounted_paths(b"{}")
