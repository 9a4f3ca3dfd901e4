"""Rules, amounts and requests in plain English that needs no knowledge of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.placement.rules import Rule
from hamicommon.placement.unschedulable import Shortfall


def cards(count: int) -> str:
    """`1 card`, `2 cards`."""
    return counted(count, "card")


def counted(count: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortfall(short: Shortfall, device: GpuDevice | None) -> str:
    """Why one card can't take the slice, with the amounts."""
    rule = short.rule
    if rule is Rule.MEMORY:
        return f"{short.available} MiB free, {short.requested} MiB wanted"
    if rule is Rule.CORES:
        return f"{short.available} % of its cores free, {short.requested} % wanted"
    if rule is Rule.TYPE and device is not None:
        return f"of type {device.type}"
    if rule is Rule.NOT_HEALTHY and device is not None and device.health_reason:
        return f"unhealthy: {device.health_reason}"
    if rule is Rule.SLOTS and device is not None:
        return "its only slot taken" if device.slots == 1 else f"all {device.slots} slots taken"
    return rule.row.group


def asked(request: DeviceRequest) -> str:
    """One container's wish: `1 NVIDIA card with 4096 MiB and 30 % of its cores`."""
    parts = []
    if request.memory_mib:
        parts.append(f"{request.memory_mib} MiB")
    elif request.memory_percent == 100:
        parts.append("all of its memory")
    elif request.memory_percent is not None:
        parts.append(f"{request.memory_percent} % of its memory")
    if request.core_percent:
        # More than a card has is taken as all of it.
        parts.append(f"{min(request.core_percent, 100)} % of its cores")
    many = f"{request.count} {request.vendor} card" + ("s" if request.count != 1 else "")
    each = " each" if request.count != 1 and parts else ""
    return many + (f" with {' and '.join(parts)}{each}" if parts else "")


def asked_by(request: PodRequest) -> list[str]:
    """The wishes of all containers that have one."""
    several = sum(bool(container.requests) for container in request.containers) > 1
    return [
        (f"{container.name}: " if several else "") + asked(wanted)
        for container in request.containers
        for wanted in container.requests
    ]


def selection(chosen: Selection) -> list[tuple[str, str]]:
    """(field, phrase) of every restriction that the pod's annotations make."""
    found = []
    for field, phrase in (
        ("use_types", "the wanted card types"),
        ("avoid_types", "the unwanted card types"),
        ("use_uuids", "the wanted card uuids"),
        ("avoid_uuids", "the unwanted card uuids"),
    ):
        values: Sequence[str] = getattr(chosen, field)
        if values:
            found.append((field, f"{phrase} ({listed(values)})"))
    if chosen.mode:
        found.append(("mode", f"the wanted card mode ({chosen.mode})"))
    if chosen.numa_bind:
        found.append(("numa_bind", "numa-bind"))
    return found


def listed(values: Iterable[str], most: int = 3) -> str:
    """The first few of them, and how many more there are."""
    every = list(dict.fromkeys(values))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
