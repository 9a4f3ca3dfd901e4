"""Enflame cards that can be cut, from the capacity annotation of their node (protocol 1.12)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest

NAME = "Enflame"
CAPACITY = "enflame.com/gcu-drs-capacity"

_PROFILE = re.compile(r"([1-9][0-9]{0,3})g\.([1-9][0-9]{0,5})gb")


class Profile(NamedTuple):
    """One way to cut a card; sorted by size, then memory."""

    size: int
    memory_gib: int
    name: str
    id: str


def profiles_of(card: GpuDevice) -> list[Profile]:
    """The profiles of a card, the smallest first."""
    return sorted(_profile(name, id_) for name, id_ in card.info["profiles"].items())


def cards_of(text: str, host: str) -> tuple[GpuDevice, ...]:
    """The cards in the annotation of the node of that name.

    Raises: InvalidRequest when it is malformed.
    """
    where = CAPACITY
    try:
        capacity: Any = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{where} is not JSON: {exc}") from exc
    if not isinstance(capacity, dict):
        raise InvalidRequest(f"{where} is not a JSON object of devices and profiles")
    devices, profiles = capacity.get("devices"), capacity.get("profiles")
    if not isinstance(devices, list) or not all(isinstance(entry, dict) for entry in devices):
        raise InvalidRequest(f"{where}: devices is no list of objects")
    if not isinstance(profiles, dict) or not profiles:
        raise InvalidRequest(f"{where}: at least one profile is wanted under profiles")
    known = [_profile(name, str(id_)) for name, id_ in profiles.items()]
    return tuple(_card(entry, known, host) for entry in devices)


def _profile(name: str, id_: str) -> Profile:
    match = _PROFILE.fullmatch(name)
    if match is None:
        raise InvalidRequest(f"{CAPACITY}: profile {name!r} is not written like 2g.12gb")
    return Profile(int(match[1]), int(match[2]), name, id_)


def _card(entry: Mapping[str, Any], profiles: Sequence[Profile], host: str) -> GpuDevice:
    index, capacity = str(entry.get("index", "")), str(entry.get("capacity", ""))
    if not re.fullmatch("[0-9]{1,4}", index):
        raise InvalidRequest(f"{CAPACITY}: index {index!r} of a device is no whole number")
    if not re.fullmatch("0*[1-9][0-9]{0,5}", capacity):
        raise InvalidRequest(
            f"{CAPACITY}: capacity of device {index} is {capacity!r}: a whole number above 0 "
            "is wanted"
        )
    return GpuDevice(
        uuid=GpuUuid(f"{host}-enflame-drs-{index}"),
        index=int(index),
        vendor=NAME,
        type=NAME,
        slots=int(capacity),
        memory_mib=max(profile.memory_gib for profile in profiles) * 1024,
        core_percent=100,
        mode="",
        info={
            "index": index,
            "minor": str(entry.get("minor", "")),
            "profiles": {profile.name: profile.id for profile in profiles},
            "maxSlice": max(profile.size for profile in profiles),
        },
    )
