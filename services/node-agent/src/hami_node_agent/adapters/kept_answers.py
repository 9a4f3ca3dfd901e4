"""Allocate answers as the kubelet's checkpoint keeps them: ours, and those of the plugin before us.

Ours is known by the limits mount. HAMi's has its limits in the environment (protocol sheet 5.7.1)
and names the cards there, in mounts or as CDI devices, as its device list strategy says. Both were
given by a device plugin and kept by the kubelet: no user can write them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from google.protobuf.message import DecodeError
from hamicommon.domain.ids import GpuUuid
from hamicommon.kubelet._generated import deviceplugin_pb2 as api

from hami_node_agent.domain.container_spec import LIMITS_MOUNT
from hami_node_agent.domain.ownership import ForeignAnswer, KeptAnswer

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
# The value of VISIBLE, and the folder of the mounts, with the strategy `volume-mounts`.
VISIBLE_MOUNTS = "/var/run/nvidia-container-devices"
CDI_CLASS = "k8s.device-plugin.nvidia.com/gpu="
_MEMORY = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_(\d{1,3})")
_MIB = re.compile(r"(\d{1,10})m")


def kept_answer(text: str) -> KeptAnswer | ForeignAnswer | None:
    """Reads an AllocResp; None where there is none.

    Raises: ValueError when it is not base64 of an answer.
    """
    if not text:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
        answer = api.ContainerAllocateResponse.FromString(raw)
    except (binascii.Error, DecodeError) as exc:
        raise ValueError(f"AllocResp: {exc}") from exc
    mounts = {mount.container_path: mount.host_path for mount in answer.mounts}
    caches = [path for path in mounts.values() if PurePosixPath(path).parent.name == "containers"]
    cache_dir = PurePosixPath(caches[0]).name if caches else ""
    if LIMITS_MOUNT in mounts:
        return KeptAnswer(
            nonce=PurePosixPath(mounts[LIMITS_MOUNT]).name,
            cards=tuple(GpuUuid(card) for card in answer.envs.get(VISIBLE, "").split(",")),
            cache_dir=cache_dir,
        )
    return ForeignAnswer(
        visible=_visible(answer, mounts),
        memory_mib=_memory_mib(answer.envs),
        core_percent=_core_percent(answer.envs),
        cache_dir=cache_dir,
    )


def _visible(answer: api.ContainerAllocateResponse, mounts: Mapping[str, str]) -> tuple[str, ...]:
    named = answer.envs.get(VISIBLE, "")
    if named == VISIBLE_MOUNTS:
        folder = PurePosixPath(VISIBLE_MOUNTS)
        return tuple(PurePosixPath(p).name for p in mounts if PurePosixPath(p).parent == folder)
    if named:
        return tuple(card.strip() for card in named.split(",") if card.strip())
    devices = [device.name for device in answer.cdi_devices]
    devices += [name for value in answer.annotations.values() for name in value.split(",")]
    return tuple(n.removeprefix(CDI_CLASS) for n in devices if n.startswith(CDI_CLASS))


def _memory_mib(envs: Mapping[str, str]) -> tuple[int, ...]:
    """Limits by position; empty unless every position up to the last has one in HAMi's form."""
    found: dict[int, int] = {}
    for name, value in envs.items():
        position, amount = _MEMORY.fullmatch(name), _MIB.fullmatch(value)
        if position is not None:
            if amount is None:
                return ()
            found[int(position[1])] = int(amount[1])
    if sorted(found) != list(range(len(found))):
        return ()
    return tuple(found[position] for position in range(len(found)))


def _core_percent(envs: Mapping[str, str]) -> int | None:
    text = envs.get("CUDA_DEVICE_SM_LIMIT", "")
    return int(text) if text.isascii() and text.isdigit() else None
