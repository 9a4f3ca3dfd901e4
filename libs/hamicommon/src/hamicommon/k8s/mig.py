"""MIG slices in grants and in the annotation `hami.io/vgpu-mig-allocations` (protocol 2.6).

The scheduler reserves a profile and a placement; the node makes the instance and adds its three
runtime names. Up to HAMi 2.9 a slice was written `UUID[template-slot]` instead (protocol 10), which
names only the card, not which part of it is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest

_LEGACY = re.compile(r"(?P<card>[^\[\]]+)\[\d+-\d+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """A MIG profile at a placement: the memory slices [start, start + size) of a card."""

    profile: str
    start: int
    size: int

    @property
    def detail(self) -> dict[str, Any]:
        """Return the slice as `DeviceShare.detail`; the ledger lets no two placements overlap."""
        return {
            "profile": self.profile,
            "placement": {"start": self.start, "size": self.size},
        }

    @classmethod
    def from_detail(cls, detail: Mapping[str, Any]) -> MigSlice | None:
        """Return the slice from a detail; None if the detail describes no MIG slice."""
        place = detail.get("placement")
        if place is None:
            return None
        return cls(profile=detail["profile"], start=place["start"], size=place["size"])

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether the slice overlaps [start, start + size)."""
        return self.start < start + size and start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class MigReservation:
    """Entry of the annotation.

    The last three fields are set when the node has made the instance.
    """

    container_index: int
    """Index of the container; init containers come first."""
    device_index: int
    """Index among the container's cards."""
    card: GpuUuid
    slice: MigSlice
    mig_uuid: str = ""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigNames:
    """Names that the driver gave to the instance of a reservation."""

    card: GpuUuid
    mig_uuid: str
    gpu_instance_id: int
    compute_instance_id: int


def reservations_of(
    containers: Sequence[ContainerGrant], vendor: str
) -> tuple[MigReservation, ...]:
    """Return the MIG slices of a placed pod; `device_index` counts this vendor's cards only."""
    return tuple(
        MigReservation(
            container_index=container.index, device_index=number, card=share.uuid, slice=part
        )
        for container in containers
        for number, share in enumerate(s for s in container.shares if s.vendor == vendor)
        if (part := MigSlice.from_detail(share.detail)) is not None
    )


def with_names(
    reservations: Iterable[MigReservation], made: Mapping[tuple[int, int], MigNames]
) -> tuple[MigReservation, ...]:
    """Add the names of instances to the reservations, by (container index, device index).

    Instances for no reservation, and instances on another card, are ignored.
    """
    found = []
    for one in reservations:
        names = made.get((one.container_index, one.device_index))
        if names is not None and names.card == one.card:
            one = replace(
                one,
                mig_uuid=names.mig_uuid,
                gpu_instance_id=names.gpu_instance_id,
                compute_instance_id=names.compute_instance_id,
            )
        found.append(one)
    return tuple(found)


def encode_reservations(reservations: Iterable[MigReservation]) -> str:
    """Encode the annotation's value, compact like Go's JSON."""
    return json.dumps([_encode_reservation(one) for one in reservations], separators=(",", ":"))


def _encode_reservation(one: MigReservation) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "containerIndex": one.container_index,
        "deviceIndex": one.device_index,
        "gpuUUID": one.card,
        "profile": one.slice.profile,
        "placement": {"start": one.slice.start, "size": one.slice.size},
    }
    if one.mig_uuid:
        entry |= {
            "migUUID": one.mig_uuid,
            "gpuInstanceID": one.gpu_instance_id,
            "computeInstanceID": one.compute_instance_id,
        }
    return entry


def decode_reservations(text: str) -> tuple[MigReservation, ...]:
    """Decode the annotation; an empty value has no entries.

    Raises: InvalidRequest naming the entry and its error.
    """
    if not text.strip():
        return ()
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"MIG reservations are not JSON: {exc}") from exc
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise InvalidRequest("MIG reservations are not a JSON list")
    found = tuple(_decode_reservation(number, entry) for number, entry in enumerate(entries))
    keys = [(one.container_index, one.device_index) for one in found]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise InvalidRequest(
                f"MIG reservation {number}: container {key[0]}, device {key[1]} appears twice"
            )
    return found


def _decode_reservation(number: int, entry: object) -> MigReservation:
    where = f"MIG reservation {number}"
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{where} is not an object")
    place = entry.get("placement") or {}
    if not isinstance(place, dict):
        raise InvalidRequest(f"{where}: placement is not an object")
    container, device = _whole(where, entry, "containerIndex"), _whole(where, entry, "deviceIndex")
    start, size = _whole(where, place, "start"), _whole(where, place, "size")
    if size == 0:
        raise InvalidRequest(f"{where}: placement.size is 0; expected at least 1")
    runtime = ("migUUID", "gpuInstanceID", "computeInstanceID")
    known = [key for key in runtime if entry.get(key) not in (None, "")]
    if known and len(known) < len(runtime):
        raise InvalidRequest(f"{where}: of {', '.join(runtime)} only {', '.join(known)} is there")
    return MigReservation(
        container_index=container,
        device_index=device,
        card=GpuUuid(_name(where, entry, "gpuUUID")),
        slice=MigSlice(profile=_name(where, entry, "profile"), start=start, size=size),
        mig_uuid=_name(where, entry, "migUUID") if known else "",
        gpu_instance_id=_whole(where, entry, "gpuInstanceID") if known else None,
        compute_instance_id=_whole(where, entry, "computeInstanceID") if known else None,
    )


def _whole(where: str, entry: Mapping[str, Any], key: str) -> int:
    value = entry.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f"{where}: {key} is {value!r}; expected a whole number, 0 or more")
    return value


def _name(where: str, entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{where}: {key} is {value!r}; expected a name")
    return value


def card_of(written: str) -> GpuUuid:
    """Return the card that an entry of the device annotation names, which may be `UUID[2-0]`."""
    legacy = _LEGACY.fullmatch(written)
    return GpuUuid(legacy["card"] if legacy else written)
