"""HAMi's `config.json`: what one node overrides in the device configuration (protocol 5.2).

    {"nodeconfig": [{"name": "node-1", "devicesplitcount": 4, "filterdevices": {"index": [0]}}]}

Deprecated; a variable of the node's own agent does the same. As in HAMi, keys have any case,
entries with our name are merged in order, and a zero, an empty text or an empty list overrides
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import orjson
from hamicommon.errors import InvalidRequest

from hami_node_agent.config.hami_flags import LAST_VERSION

PATH = Path("/config/config.json")
"""Where HAMi mounts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """The file's settings of one node."""

    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """One sentence for each key that means nothing, and one that the file goes."""


def load(path: Path, node: str) -> NodeFile:
    """Read the file; without one nothing is overridden.

    Raises: InvalidRequest that names the file, and the key when one is wrong.
    """
    try:
        return parse(path.read_bytes(), node)
    except FileNotFoundError:
        return NodeFile()
    except OSError as exc:
        raise InvalidRequest(f"{path}: it can't be read: {exc}") from exc
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc


def parse(content: bytes, node: str) -> NodeFile:
    """Merge the entries of `node`.

    Raises: InvalidRequest with the path of the wrong key, its value and what would be right.
    """
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"no JSON: {exc}") from exc
    notes: list[str] = []
    entries = _object(document, {"nodeconfig": ("", lambda value: value)}, "", notes)
    if not isinstance(entries.get("nodeconfig", []), list):
        raise InvalidRequest(f"nodeconfig is {entries['nodeconfig']!r}: a list of nodes is wanted")
    settings: dict[str, object] = {}
    for position, entry in enumerate(entries.get("nodeconfig", [])):
        where, noted = f"nodeconfig[{position}]", list[str]()
        found = _object(entry, KEYS, where, noted)
        if found.pop("name", "") != node:
            continue
        hidden = _object(found.pop("filterdevices", {}), FILTERS, f"{where}.filterdevices", noted)
        devices = (*hidden.get("uuid", ()), *map(str, hidden.get("index", ())))
        notes += noted
        notes += (
            f"{where}.{key}: it has no effect{reason}"
            for key, reason in _UNUSED.items()
            if found.pop(key, "") not in ("", True)
        )
        settings |= {KEYS[key][0]: value for key, value in found.items() if value}
        settings |= {"hidden_devices": devices} if devices else {}
    if settings:
        notes.append(f"HAMi's config.json is deprecated and goes with {LAST_VERSION}")
    return NodeFile(settings=settings, notes=tuple(notes))


def _object(
    value: Any,
    keys: Mapping[str, tuple[str, Callable[[Any], object]]],
    where: str,
    notes: list[str],
) -> dict[str, Any]:
    """Return the known keys of a JSON object, whatever their case, as Go reads them."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{where or 'the file'}: an object is wanted, not {value!r}")
    found: dict[str, Any] = {}
    for name, entry in value.items():
        key, path = str(name).lower(), f"{where}.{name}".removeprefix(".")
        if key not in keys:
            close = get_close_matches(key, keys, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            notes.append(f"{path}: unknown key, it is ignored{hint}")
        elif entry is not None:
            try:
                found[key] = keys[key][1](entry)
            except InvalidRequest as exc:
                raise InvalidRequest(f"{path} is {entry!r}: {exc}") from exc
    return found


def _of(kinds: type | tuple[type, ...], wanted: str) -> Callable[[Any], Any]:
    """Check for a JSON value of these types, 0 or more if it is a number; true is no number."""

    def check(value: Any) -> Any:
        is_flag = isinstance(value, bool)
        if not isinstance(value, kinds) or is_flag != (kinds is bool):
            raise InvalidRequest(wanted)
        if not is_flag and isinstance(value, int | float) and value < 0:
            raise InvalidRequest(wanted)
        return value

    return check


def _all(check: Callable[[Any], Any], wanted: str) -> Callable[[Any], Any]:
    def check_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise InvalidRequest(wanted)
        return tuple(check(item) for item in value)

    return check_all


_bool = _of(bool, "true or false is wanted")
_count = _of(int, "a whole number is wanted, 0 or more")
_factor = _of((int, float), "a number above 0 is wanted")
_text = _of(str, "a text is wanted")
_text_or_count = _of((str, int), "a text is wanted")

KEYS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("", _text),
    "operatingmode": ("operating_mode", _text),
    "migstrategy": ("", _text),
    "filterdevices": ("", lambda value: value),
    "enablegetpreferredallocation": ("", _bool),
    "devicesplitcount": ("device_split_count", _count),
    "devicememoryscaling": ("device_memory_scaling", _factor),
    "devicecorescaling": ("device_core_scaling", _factor),
    "preconfigureddevicememory": ("preconfigured_device_memory_mib", _count),
    "libcudaloglevel": ("libcuda_log_level", lambda value: str(_text_or_count(value))),
    "enablenumatopology": ("enable_numa_topology", _bool),
}
"""Key -> setting, and the check of its value."""
FILTERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "uuid": ("", _all(_text, "a list of uuids is wanted")),
    "index": ("", _all(_count, "a list of NVML indexes is wanted")),
}
_UNUSED = {
    "migstrategy": ": HAMi reads it and does nothing; set MIG_STRATEGY",
    "enablegetpreferredallocation": ": the kubelet asks whenever the choice matters",
}
