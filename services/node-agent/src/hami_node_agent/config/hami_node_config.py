"""Read HAMi's `config.json`, which overrides the device configuration per node (protocol 5.2).

    {"nodeconfig": [{"name": "node-1", "devicesplitcount": 4, "filterdevices": {"index": [0]}}]}

Deprecated; a variable of the node's own agent does the same. As in HAMi, keys have any case,
entries with our name are merged in order, and a zero, an empty text or an empty list overrides
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import orjson
from hamicommon.errors import InvalidRequest
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, ValidationError

from hami_node_agent.config.hami_flags import LAST_VERSION

PATH = Path("/config/config.json")
"""Path at which HAMi mounts the file."""


class _Keys(BaseModel):
    model_config = ConfigDict(strict=True)


class FilterKeys(_Keys):
    """Lists of cards that are hidden."""

    uuid: list[str] = []
    index: list[NonNegativeInt] = []


class NodeKeys(_Keys):
    """Entry of one node; an alias is the setting that a key stands for."""

    name: str = ""
    migstrategy: str = ""
    filterdevices: FilterKeys = FilterKeys()
    enablegetpreferredallocation: bool = True
    operatingmode: str = Field(default="", serialization_alias="operating_mode")
    devicesplitcount: NonNegativeInt = Field(default=0, serialization_alias="device_split_count")
    devicememoryscaling: NonNegativeFloat = Field(
        default=0, serialization_alias="device_memory_scaling"
    )
    devicecorescaling: NonNegativeFloat = Field(
        default=0, serialization_alias="device_core_scaling"
    )
    preconfigureddevicememory: NonNegativeInt = Field(
        default=0, serialization_alias="preconfigured_device_memory_mib"
    )
    libcudaloglevel: str | NonNegativeInt = Field(
        default="", serialization_alias="libcuda_log_level"
    )
    enablenumatopology: bool = Field(default=False, serialization_alias="enable_numa_topology")


_NO_SETTINGS = {"name", "migstrategy", "filterdevices", "enablegetpreferredallocation"}
K = TypeVar("K", bound=_Keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """Settings for one node from the file."""

    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """A sentence for each key without effect, and one that the file is deprecated."""


def load(path: Path, node: str) -> NodeFile:
    """Read the file; a missing one overrides nothing.

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
    """Merge the entries for `node`.

    Raises: InvalidRequest with the path of the wrong key, its value and what would be right.
    """
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"not JSON: {exc}") from exc
    entries = _lower_keys(document, "the file").get("nodeconfig", [])
    if not isinstance(entries, list):
        raise InvalidRequest(f"nodeconfig is {entries!r}: expected a list of nodes")
    notes: list[str] = []
    settings: dict[str, object] = {}
    for position, entry in enumerate(entries):
        where = f"nodeconfig[{position}]"
        given = _lower_keys(entry, where)
        if given.get("name", "") != node:
            continue
        hidden = _lower_keys(given.get("filterdevices", {}), f"{where}.filterdevices")
        given["filterdevices"] = hidden
        keys = _validate_keys(NodeKeys, given, where, notes)
        _validate_keys(FilterKeys, hidden, f"{where}.filterdevices", notes)
        if keys.migstrategy:
            notes.append(f"{where}.migstrategy: HAMi reads it without effect; set MIG_STRATEGY")
        if not keys.enablegetpreferredallocation:
            notes.append(
                f"{where}.enablegetpreferredallocation: it has no effect: the kubelet asks "
                "whenever the choice matters"
            )
        found = keys.model_dump(by_alias=True, exclude=_NO_SETTINGS)
        found["libcuda_log_level"] = str(found["libcuda_log_level"])
        found["hidden_devices"] = (*keys.filterdevices.uuid, *map(str, keys.filterdevices.index))
        settings |= {name: value for name, value in found.items() if value}
    if settings:
        notes.append(f"HAMi's config.json is deprecated and read until {LAST_VERSION}")
    return NodeFile(settings=settings, notes=tuple(notes))


def _lower_keys(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object with keys in lower case and without nulls, as Go reads it."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{where}: expected an object, not {value!r}")
    return {str(key).lower(): entry for key, entry in value.items() if entry is not None}


def _validate_keys(kind: type[K], given: Mapping[str, Any], where: str, notes: list[str]) -> K:
    for key in sorted(given.keys() - kind.model_fields.keys()):
        close = get_close_matches(key, kind.model_fields, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        notes.append(f"{where}.{key}: unknown key, ignored{hint}")
    try:
        return kind.model_validate(given)
    except ValidationError as exc:
        wrong = exc.errors()[0]
        place = ".".join(str(part) for part in (where, *wrong["loc"]))
        raise InvalidRequest(f"{place} is {wrong['input']!r}: {wrong['msg']}") from exc
