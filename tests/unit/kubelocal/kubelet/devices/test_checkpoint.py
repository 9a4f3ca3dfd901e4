"""The device checkpoint's file form."""

import base64

import orjson
import pytest
from hamicommon.errors import InvalidRequest
from hamicommon.kubelet_api._generated import deviceplugin_pb2
from kubelocal.kubelet.devices import checkpoint, plugins
from kubelocal.kubelet.devices.state import AllocateAnswer, DeviceAllocation, Mount

MESSAGE = deviceplugin_pb2.ContainerAllocateResponse(
    envs={"B": "2", "A": "1"},
    mounts=[deviceplugin_pb2.Mount(container_path="/etc/hami", host_path="/host", read_only=True)],
)


def allocation() -> DeviceAllocation:
    return DeviceAllocation(
        pod_uid="uid-1",
        container="main",
        resource="nvidia.com/gpu",
        ids_by_numa={0: ("gpu-0-0",), 1: ("gpu-1-3", "gpu-1-4")},
        answer=plugins.from_message(MESSAGE),
    )


def test_an_entry_has_the_fields_that_readers_of_a_real_node_know() -> None:
    content = orjson.loads(checkpoint.encode([allocation()], {"nvidia.com/gpu": ["gpu-0-0"]}))

    entry = content["Data"]["PodDeviceEntries"][0]
    response = deviceplugin_pb2.ContainerAllocateResponse.FromString(
        base64.b64decode(entry.pop("AllocResp"))
    )
    assert entry == {
        "PodUID": "uid-1",
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"0": ["gpu-0-0"], "1": ["gpu-1-3", "gpu-1-4"]},
    }
    assert response == MESSAGE
    assert content["Data"]["RegisteredDevices"] == {"nvidia.com/gpu": ["gpu-0-0"]}
    assert isinstance(content["Checksum"], int)


def test_what_is_written_is_read_back() -> None:
    content = checkpoint.encode([allocation()], {"nvidia.com/gpu": ["gpu-0-0"]})

    allocations, resources = checkpoint.decode(content, plugins.decode_answer)

    assert allocations == [allocation()]
    assert resources == ["nvidia.com/gpu"]
    assert allocations[0].answer.mounts == (
        Mount(container_path="/etc/hami", host_path="/host", read_only=True),
    )


def test_an_empty_checkpoint_is_read_back() -> None:
    assert checkpoint.decode(checkpoint.encode([], {}), plugins.decode_answer) == ([], [])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"Data": null, "Checksum": 1}',
        checkpoint.encode([allocation()], {}).replace(b"uid-1", b"uid-2"),
    ],
    ids=["empty", "no data", "null data", "changed"],
)
def test_a_damaged_checkpoint_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match="kubelet_internal_checkpoint"):
        checkpoint.decode(content, lambda raw: AllocateAnswer(raw=raw))


def test_the_first_of_two_resources_wins_for_equal_names() -> None:
    first = AllocateAnswer(envs={"A": "1"}, mounts=(Mount(container_path="/x", host_path="/1"),))
    second = AllocateAnswer(
        envs={"A": "2", "B": "2"}, mounts=(Mount(container_path="/x", host_path="/2"),)
    )

    merged = plugins.merge_answers([first, second])

    assert merged.envs == {"A": "1", "B": "2"}
    assert [mount.host_path for mount in merged.mounts] == ["/1"]
