"""HAMi's `config.json`: what one node overrides in the device configuration (protocol 5.2).

    {"nodeconfig": [{"name": "node-1", "devicesplitcount": 4, "filterdevices": {"index": [0]}}]}

In: the text and the node's name. Out: settings, merged over the device configuration's, and one
sentence for each key that means nothing. As in HAMi, entries with our name are merged in order, and
a zero, an empty text or an empty list overrides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import orjson
from hamicommon.errors import InvalidRequest

# HAMi mounts it there.
DEFAULT_PATH = Path("/config/config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """What the file has for one node."""

    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def load(path: Path, node: str) -> NodeFile:
    """Reads the file; without one nothing is overridden.

    Raises: InvalidRequest that names the file, and the key when one is wrong.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return NodeFile()
    except OSError as exc:
        raise InvalidRequest(f"{path}: it can't be read: {exc}") from exc
    try:
        return parse(content, node)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc


def parse(content: bytes, node: str) -> NodeFile:
    """The entries of `node`, merged.

    Raises: InvalidRequest with the path of the wrong key, its value and what would be right.
    """
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"no JSON: {exc}") from exc
    notes: list[str] = []
    entries = _object(document, {"nodeconfig": _raw}, "", notes).get("nodeconfig", [])
    if not isinstance(entries, list):
        raise InvalidRequest(f"nodeconfig is {entries!r}: a list of nodes is wanted")
    settings: dict[str, object] = {}
    for position, entry in enumerate(entries):
        where = f"nodeconfig[{position}]"
        noted: list[str] = []
        found = _object(entry, KEYS, where, noted)
        if found.pop("name", "") == node:
            notes += noted
            settings |= _settings_of(found, where, notes)
    return NodeFile(settings=settings, notes=tuple(notes))


def _settings_of(found: Mapping[str, object], where: str, notes: list[str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for key, value in found.items():
        if key == "filterdevices":
            settings |= _filter(value, f"{where}.{key}", notes)
        elif key == "migstrategy":
            if value:
                notes.append(f"{where}.{key}: HAMi reads it and does nothing; set MIG_STRATEGY")
        # False counts only there: elsewhere HAMi can't distinguish it from silence.
        elif value or key == "enablegetpreferredallocation":
            settings[_SETTINGS[key]] = value
    return settings


def _filter(value: object, where: str, notes: list[str]) -> dict[str, object]:
    found = _object(value, {"uuid": _texts, "index": _numbers}, where, notes)
    names = {"uuid": "hidden_uuids", "index": "hidden_indexes"}
    return {names[key]: listed for key, listed in found.items() if listed}


def _object(
    value: object, keys: Mapping[str, Callable[[object], object]], where: str, notes: list[str]
) -> dict[str, object]:
    """The known keys of a JSON object, whatever their case, as Go reads them."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{where or 'the file'}: an object is wanted, not {value!r}")
    found: dict[str, object] = {}
    for name, entry in value.items():
        key, path = str(name).lower(), f"{where}.{name}".removeprefix(".")
        if key not in keys:
            close = get_close_matches(key, keys, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            notes.append(f"{path}: unknown key, it is ignored{hint}")
        elif entry is not None:
            try:
                found[key] = keys[key](entry)
            except InvalidRequest as exc:
                raise InvalidRequest(f"{path} is {entry!r}: {exc}") from exc
    return found


def _raw(value: object) -> object:
    return value


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidRequest("a text is wanted")
    return str(value)


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest("true or false is wanted")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest("a whole number is wanted, 0 or more")
    return value


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidRequest("a number above 0 is wanted")
    return float(value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidRequest("a list of uuids is wanted")
    return tuple(_text(item) for item in value)


def _numbers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidRequest("a list of NVML indexes is wanted")
    return tuple(_count(item) for item in value)


KEYS: Mapping[str, Callable[[object], object]] = {
    "name": _text,
    "operatingmode": _text,
    "migstrategy": _text,
    "filterdevices": _raw,
    "enablegetpreferredallocation": _bool,
    "devicesplitcount": _count,
    "devicememoryscaling": _factor,
    "devicecorescaling": _factor,
    "preconfigureddevicememory": _count,
    "libcudaloglevel": _text,
    "enablenumatopology": _bool,
}
_SETTINGS = {
    "operatingmode": "operating_mode",
    "enablegetpreferredallocation": "preferred_allocation",
    "devicesplitcount": "device_split_count",
    "devicememoryscaling": "device_memory_scaling",
    "devicecorescaling": "device_core_scaling",
    "preconfigureddevicememory": "preconfigured_device_memory_mib",
    "libcudaloglevel": "libcuda_log_level",
    "enablenumatopology": "enable_numa_topology",
}
