"""Encode and decode the kubelet's device checkpoint (`kubelet_internal_checkpoint`).

In: the book's allocations. Out: bytes that readers of a real node's checkpoint understand:
`{"Data": {"PodDeviceEntries": [{PodUID, ContainerName, ResourceName, DeviceIDs: {numa: [ids]},
AllocResp: base64}], "RegisteredDevices": {resource: [ids]}}, "Checksum": n}`.
Entries are base64 of ContainerAllocateResponse; `plugins.py` decodes them.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
from hamicommon.errors import InvalidRequest

from kubelocal.kubelet.devices.state import AllocateAnswer, DeviceAllocation

FILE_NAME = "kubelet_internal_checkpoint"


def encode(allocations: Iterable[DeviceAllocation], healthy_ids: Mapping[str, list[str]]) -> bytes:
    """Encode the checkpoint file."""
    entries = [
        {
            "PodUID": allocation.pod_uid,
            "ContainerName": allocation.container,
            "ResourceName": allocation.resource,
            "DeviceIDs": {str(n): list(ids) for n, ids in sorted(allocation.ids_by_numa.items())},
            "AllocResp": base64.b64encode(allocation.answer.raw).decode(),
        }
        for allocation in allocations
    ]
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": dict(healthy_ids)}
    return orjson.dumps({"Data": data, "Checksum": _checksum(data)})


def decode(
    content: bytes, decode_answer: Callable[[bytes], AllocateAnswer]
) -> tuple[list[DeviceAllocation], list[str]]:
    """Decode allocations and registered resources of a checkpoint from `encode`.

    Raises: InvalidRequest when the file is damaged.
    """
    try:
        document = orjson.loads(content)
        data = document["Data"]
        if document["Checksum"] != _checksum(data):
            raise InvalidRequest(f"{FILE_NAME}: the checksum does not match the data")
        allocations = [
            DeviceAllocation(
                pod_uid=entry["PodUID"],
                container=entry["ContainerName"],
                resource=entry["ResourceName"],
                ids_by_numa={int(n): tuple(ids) for n, ids in entry["DeviceIDs"].items()},
                answer=decode_answer(base64.b64decode(entry["AllocResp"])),
            )
            for entry in data["PodDeviceEntries"] or []
        ]
        return allocations, list(data["RegisteredDevices"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidRequest(f"{FILE_NAME}: not a device checkpoint: {exc}") from exc


def _checksum(data: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the canonical JSON; the real one needs Go's text of a value."""
    return zlib.crc32(orjson.dumps(data, option=orjson.OPT_SORT_KEYS))
