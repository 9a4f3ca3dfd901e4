"""Allocate answers as the kubelet's checkpoint keeps them: ours, and those of the plugin before us.

Ours is known by the limits mount. HAMi's has its limits in the environment (protocol 5.7.1)
and names the cards there, in mounts or as CDI devices, by its device list strategy. Both were
given by a device plugin and kept by the kubelet: no user can write them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import PurePosixPath

from google.protobuf.message import DecodeError
from hamicommon.domain.ids import GpuUuid
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

from hami_node_agent.allocation.late_binding_rules import nonce_of
from hami_node_agent.allocation.response import LIMITS_MOUNT
from hami_node_agent.devices.device_list import CDI_VENDOR, VISIBLE, VISIBLE_MOUNTS
from hami_node_agent.grants.ports import ForeignAnswer, KeptAnswer

CDI_CLASS = f"{CDI_VENDOR}/gpu="
_MEMORY = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_(\d{1,3})")
_MIB = re.compile(r"(\d{1,10})m")


# Every look into the checkpoint reads all answers of the node, which never change. Twice the
# containers of a full node of 16 cards with 64 slots.
@lru_cache(maxsize=2048)
def kept_answer(text: str) -> KeptAnswer | ForeignAnswer | None:
    """Reads an AllocResp; None where there is none.

    Raises: ValueError when it is not base64 of an answer.
    """
    if not text:
        return None
    answer = decoded(text)
    mounts = {mount.container_path: mount.host_path for mount in answer.mounts}
    caches = [path for path in mounts.values() if PurePosixPath(path).parent.name == "containers"]
    cache_dir = PurePosixPath(caches[0]).name if caches else ""
    if LIMITS_MOUNT in mounts:
        return KeptAnswer(
            nonce=PurePosixPath(mounts[LIMITS_MOUNT]).name,
            cards=tuple(GpuUuid(card) for card in _visible(answer, mounts)),
            cache_dir=cache_dir,
        )
    nonces = [nonce for name in _cdi_names(answer) if (nonce := nonce_of(name))]
    if nonces:
        # Bound late: the answer is the nonce, and its cards are in its CDI file.
        return KeptAnswer(nonce=nonces[0], cards=(), cache_dir="")
    return ForeignAnswer(
        visible=_visible(answer, mounts),
        memory_mib=_memory_mib(answer.envs),
        core_percent=_core_percent(answer.envs),
        cache_dir=cache_dir,
    )


def decoded(text: str) -> api.ContainerAllocateResponse:
    """The message in an AllocResp. Raises: ValueError when it is not base64 of one."""
    try:
        return api.ContainerAllocateResponse.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError) as exc:
        raise ValueError(f"AllocResp: {exc}") from exc


def _visible(answer: api.ContainerAllocateResponse, mounts: Mapping[str, str]) -> tuple[str, ...]:
    named = answer.envs.get(VISIBLE, "")
    if named == VISIBLE_MOUNTS:
        folder = PurePosixPath(VISIBLE_MOUNTS)
        return tuple(PurePosixPath(p).name for p in mounts if PurePosixPath(p).parent == folder)
    if named:
        return tuple(card.strip() for card in named.split(",") if card.strip())
    # Both CDI strategies at once name every card twice.
    names = dict.fromkeys(name for name in _cdi_names(answer) if name.startswith(CDI_CLASS))
    return tuple(name.removeprefix(CDI_CLASS) for name in names)


def _cdi_names(answer: api.ContainerAllocateResponse) -> list[str]:
    """From the field, and from annotations for kubelets that do not know it."""
    names = [device.name for device in answer.cdi_devices]
    return names + [name for value in answer.annotations.values() for name in value.split(",")]


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
