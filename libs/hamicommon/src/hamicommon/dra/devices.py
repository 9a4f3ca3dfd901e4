"""Describe a card as a device of Dynamic Resource Allocation.

Capacities: `memory` in bytes, a multiple of 1 MiB; `cores` in percent of the card; `slots` of its
split count. A request without amounts gets the whole memory, no limit of cores, and one slot, as a
pod that asks only for `nvidia.com/gpu: 1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.types import Json

DRIVER = "gpu.hami.io"
MEMORY, CORES, SLOTS = "memory", "cores", "slots"
UNHEALTHY_TAINT = f"{DRIVER}/unhealthy"
_MIB = 1 << 20
# A taint or attribute as Kubernetes takes it.
_LONGEST_TEXT = 64
_NO_LABEL = re.compile(r"[^a-z0-9-]+")


def device_name(uuid: str) -> str:
    """Return the card's name in ResourceSlices: its uuid as a DNS label."""
    return _NO_LABEL.sub("-", uuid.lower()).strip("-")[:63].rstrip("-")


def named_devices(uuids: Iterable[GpuUuid]) -> dict[str, GpuUuid]:
    """Return the cards by their names in ResourceSlices."""
    return {device_name(uuid): uuid for uuid in uuids}


def device_of(card: GpuDevice, *, memory_mib: int, core_percent: int, slots: int) -> Json:
    """Return the card as an entry of a ResourceSlice, with the amounts that claims may take of it.

    `memory_mib`, `core_percent` and `slots` are what pods by the device plugin leave of it; a card
    with nothing left stays in the slice, with a taint, because claims on it continue.
    """
    full = min(memory_mib, slots) < 1
    taints = [] if card.healthy else [_taint(UNHEALTHY_TAINT, card.health_reason)]
    if full:
        taints.append(_taint(f"{DRIVER}/full", "device-plugin"))
    memory_mib, slots = max(memory_mib, 1), max(slots, 1)
    device: Json = {
        "name": device_name(card.uuid),
        "allowMultipleAllocations": True,
        "attributes": {
            "uuid": {"string": card.uuid[:_LONGEST_TEXT]},
            "productName": {"string": card.type[:_LONGEST_TEXT]},
            "index": {"int": card.index},
            "numa": {"int": card.numa},
            # Of the whole card: the capacity is what limits leave of it.
            "memoryMib": {"int": card.memory_mib},
        },
        "capacity": {
            MEMORY: _capacity(memory_mib, "Mi", default=memory_mib, least=1),
            CORES: _capacity(max(core_percent, 0), "", default=0, least=0),
            SLOTS: _capacity(slots, "", default=1, least=1),
        },
    }
    if taints:
        device["taints"] = taints
    return device


def _capacity(value: int, unit: str, *, default: int, least: int) -> Json:
    """Return a capacity with its request policy; without one a claim would take all of it."""
    policy: Json = {"default": f"{default}{unit}"}
    if value > least:
        policy["validRange"] = {
            "min": f"{least}{unit}",
            "max": f"{value}{unit}",
            "step": f"1{unit}",
        }
    else:
        # The API server refuses a range that has no room for a step.
        policy["validValues"] = [f"{value}{unit}"]
    return {"value": f"{value}{unit}", "requestPolicy": policy}


def _taint(key: str, why: str) -> Json:
    value = _NO_LABEL.sub("-", why.lower()).strip("-")[:63].rstrip("-")
    return {"key": key, "value": value, "effect": "NoSchedule"}


def mib_of_bytes(count: int) -> int:
    """Return the whole MiB that hold so many bytes."""
    return -(-count // _MIB)
