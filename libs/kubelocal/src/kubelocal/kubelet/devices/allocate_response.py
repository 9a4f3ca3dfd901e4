"""Between the wire form of an Allocate answer (protobuf) and `devices.AllocateAnswer`."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from hamicommon.errors import InvalidRequest
from hamicommon.kubelet_api._generated import deviceplugin_pb2

from kubelocal.kubelet.devices.types import AllocateAnswer, DeviceNode, Mount

# Generated messages are made at run time, so they have no static types.
_messages: Any = deviceplugin_pb2


def from_message(message: Any) -> AllocateAnswer:
    """Decoded answer, with its serialised form beside it."""
    return AllocateAnswer(
        raw=message.SerializeToString(deterministic=True),
        envs=dict(message.envs),
        mounts=tuple(
            Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in message.mounts
        ),
        nodes=tuple(
            DeviceNode(
                container_path=d.container_path, host_path=d.host_path, permissions=d.permissions
            )
            for d in message.devices
        ),
        annotations=dict(message.annotations),
        cdi_devices=tuple(device.name for device in message.cdi_devices),
    )


def from_bytes(content: bytes) -> AllocateAnswer:
    """Decodes a checkpoint's AllocResp.

    Raises: InvalidRequest when the bytes are not a ContainerAllocateResponse.
    """
    try:
        return from_message(_messages.ContainerAllocateResponse.FromString(content))
    except DecodeError as exc:
        raise InvalidRequest(f"AllocResp: not a ContainerAllocateResponse: {exc}") from exc


def merge(answers: list[AllocateAnswer]) -> AllocateAnswer:
    """What a container of several device resources gets: the first of equal names wins."""
    envs: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    nodes: dict[str, DeviceNode] = {}
    annotations: dict[str, str] = {}
    for answer in answers:
        envs = {**answer.envs, **envs}
        annotations = {**answer.annotations, **annotations}
        for mount in answer.mounts:
            mounts.setdefault(mount.container_path, mount)
        for node in answer.nodes:
            nodes.setdefault(node.container_path, node)
    return AllocateAnswer(
        envs=envs,
        mounts=tuple(mounts.values()),
        nodes=tuple(nodes.values()),
        annotations=annotations,
        cdi_devices=tuple(dict.fromkeys(name for a in answers for name in a.cdi_devices)),
    )
