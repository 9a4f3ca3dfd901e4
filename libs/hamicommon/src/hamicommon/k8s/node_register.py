"""Encode and decode the node register annotation (JSON and CSV) and the pair scores.

The node-agent writes them, HAMi's scheduler and ours read them. JSON: protocol 2.1.1; every
field is left out when it is zero, so an unhealthy card has no `health`. CSV: protocol 2.1.2,
written
by NVIDIA plugins up to 2.7 and by some other vendors'.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hamicommon.domain.devices import GpuDevice, MigProfile
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest

INT32_MAX = 2**31 - 1
"""Maximum of HAMi's amounts, which are int32."""

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_CSV_MODE = "hami-core"
"""Mode of cards in the older form with seven fields, which has no mode."""


def encode_register(devices: Iterable[GpuDevice]) -> str:
    """Encode cards as JSON in the order given, byte for byte as HAMi's plugin does."""
    return _compact([_written_device(device) for device in devices])


def _written_device(device: GpuDevice) -> dict[str, Any]:
    fields = {
        "id": device.uuid,
        "index": device.index,
        "count": device.slots,
        "devmem": device.memory_mib,
        "devcore": device.core_percent,
        "type": device.type,
        "numa": device.numa,
        "mode": device.mode,
        "migProfiles": [_written_profile(profile) for profile in device.mig_profiles],
        "health": device.healthy,
    }
    return {name: value for name, value in fields.items() if value}


def _written_profile(profile: MigProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "memoryMB": profile.memory_mib,
        "core": profile.core_percent,
        "sliceCount": profile.slice_count,
        "placements": [{"start": start, "size": size} for start, size in profile.placements],
    }


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def decode_register(text: str, *, vendor: str = "NVIDIA") -> tuple[GpuDevice, ...]:
    """Decode the cards of a register annotation in either form.

    Raises: InvalidRequest naming the card and the field that is wrong.
    """
    if text.lstrip().startswith("["):
        devices = tuple(
            _json_device(entry, f"card {position}", vendor)
            for position, entry in enumerate(_load_list(text, "the node register"))
        )
    elif ":" in text:
        segments = [segment for segment in text.split(":") if segment.strip()]
        devices = tuple(
            _csv_device(segment, f"card {position}", vendor)
            for position, segment in enumerate(segments)
        )
    else:
        raise InvalidRequest(f"the node register is neither a JSON list nor CSV: {text[:80]!r}")
    seen: set[str] = set()
    for device in devices:
        if device.uuid in seen:
            raise InvalidRequest(f"the node register names card {device.uuid} twice")
        seen.add(device.uuid)
    return devices


def _load_list(text: str, what: str) -> list[Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{what} is not JSON: {exc}") from exc
    if not isinstance(value, list):
        raise InvalidRequest(f"{what} is not a JSON list")
    return value


def _json_device(entry: object, where: str, vendor: str) -> GpuDevice:
    if not isinstance(entry, Mapping):
        raise InvalidRequest(f"{where} of the node register is not a JSON object")
    uuid = _text(entry, "id", where)
    if not uuid:
        raise InvalidRequest(f"{where} of the node register has no id")
    profiles = entry.get("migProfiles")
    profiles = [] if profiles is None else profiles
    if not isinstance(profiles, list):
        raise InvalidRequest(f"migProfiles of {where} is not a list")
    return GpuDevice(
        uuid=GpuUuid(uuid),
        index=_number(entry, "index", where),
        vendor=vendor,
        type=_text(entry, "type", where),
        slots=_number(entry, "count", where),
        memory_mib=_number(entry, "devmem", where),
        core_percent=_number(entry, "devcore", where),
        numa=_number(entry, "numa", where, lowest=-1),
        mode=_text(entry, "mode", where),
        healthy=_flag(entry, "health", where),
        mig_profiles=tuple(_profile(profile, where) for profile in profiles),
        info=_info(entry, where),
    )


def _info(entry: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Read the fields that other vendors' plugins add to an entry."""
    value = entry.get("custominfo")
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"custominfo of {where} of the node register is not a JSON object")
    return value or {}


def _profile(entry: object, where: str) -> MigProfile:
    if not isinstance(entry, Mapping):
        raise InvalidRequest(f"a MIG profile of {where} is not a JSON object")
    where = f"a MIG profile of {where}"
    placements = entry.get("placements")
    placements = [] if placements is None else placements
    if not isinstance(placements, list) or not all(isinstance(p, Mapping) for p in placements):
        raise InvalidRequest(f"placements of {where} is not a list of objects")
    return MigProfile(
        name=_text(entry, "name", where),
        memory_mib=_number(entry, "memoryMB", where),
        core_percent=_number(entry, "core", where),
        slice_count=_number(entry, "sliceCount", where),
        placements=tuple(
            (_number(p, "start", where), _number(p, "size", where)) for p in placements
        ),
    )


def _number(entry: Mapping[str, Any], name: str, where: str, *, lowest: int = 0) -> int:
    value = entry.get(name)
    value = 0 if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= INT32_MAX:
        raise InvalidRequest(
            f"{name} of {where} of the node register is {value!r}: "
            f"expected a whole number from {lowest} to {INT32_MAX}"
        )
    return value


def _text(entry: Mapping[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    value = "" if value is None else value
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} of {where} of the node register is {value!r}, not a text")
    return value


def _flag(entry: Mapping[str, Any], name: str, where: str) -> bool:
    value = entry.get(name)
    value = False if value is None else value
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} of {where} of the node register is {value!r}, not a bool")
    return value


def _csv_device(segment: str, where: str, vendor: str) -> GpuDevice:
    parts = segment.strip().split(",")
    if len(parts) not in (7, 9):
        raise InvalidRequest(f"{where} of the node register has {len(parts)} fields, not 7 or 9")
    if parts[6] not in _TRUE | _FALSE:
        raise InvalidRequest(f"health of {where} of the node register is {parts[6]!r}, not a bool")
    names = ("count", "devmem", "devcore", "numa", "index")
    texts = (*parts[1:4], parts[5], parts[7] if len(parts) == 9 else "0")
    numbers: dict[str, Any] = {}
    for name, text in zip(names, texts, strict=True):
        try:
            numbers[name] = int(text)
        except ValueError:
            numbers[name] = text
    return GpuDevice(
        uuid=GpuUuid(parts[0]),
        index=_number(numbers, "index", where),
        vendor=vendor,
        type=parts[4],
        slots=_number(numbers, "count", where),
        memory_mib=_number(numbers, "devmem", where),
        core_percent=_number(numbers, "devcore", where),
        numa=_number(numbers, "numa", where, lowest=-1),
        mode=parts[8] if len(parts) == 9 else _CSV_MODE,
        healthy=parts[6] in _TRUE,
    )


def encode_pair_scores(scores: Mapping[GpuUuid, Mapping[GpuUuid, int]]) -> str:
    """Encode the annotation `hami.io/node-nvidia-score`, one entry per card in the order given."""
    return _compact(
        [
            {"uuid": uuid, "score": {str(peer): score for peer, score in peers.items()}}
            for uuid, peers in scores.items()
        ]
    )


def decode_pair_scores(text: str) -> dict[GpuUuid, dict[GpuUuid, int]]:
    """Decode the scores of every pair of cards.

    Raises: InvalidRequest when the text is not a list of `{"uuid": ..., "score": {...}}`.
    """
    found: dict[GpuUuid, dict[GpuUuid, int]] = {}
    for entry in _load_list(text, "the pair scores"):
        peers = entry.get("score") if isinstance(entry, Mapping) else None
        peers = {} if peers is None else peers
        if not isinstance(peers, Mapping) or not isinstance(entry, Mapping):
            raise InvalidRequest("an entry of the pair scores is not {uuid, score}")
        uuid = _text(entry, "uuid", "a pair score")
        found[GpuUuid(uuid)] = {
            GpuUuid(peer): _number(peers, peer, f"the pair scores of {uuid}", lowest=-INT32_MAX)
            for peer in peers
        }
    return found
