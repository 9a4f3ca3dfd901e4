"""HAMi's `device-config.yaml`: which resources a vendor's cards are asked for by, and the defaults.

In: a path (or none); out: a frozen `DeviceConfig`. The keys and their defaults are those of HAMi
2.10's chart (protocol sheet 1.1), so a file written for HAMi is read as it stands.
`vendors.registry` makes the vendors from it; the node-agent reads the node defaults
(`device_split_count` and the like) from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from hamicommon.errors import InvalidRequest

OTHER_VENDORS = frozenset(
    {
        "amd",
        "awsneuron",
        "biren",
        "cambricon",
        "enflame",
        "hygon",
        "iluvatars",
        "kunlun",
        "metax",
        "mthreads",
        "vastai",
        "vnpus",
    }
)
"""Blocks of HAMi's file for which there is no vendor module yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllowance:
    """Which MIG profiles may be used on cards whose product name contains one of `models`."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.models or not self.profiles:
            raise InvalidRequest(
                "nvidia.migProfileAllowlist: every entry needs at least one model and one profile"
            )
        for profile in self.profiles:
            slices, _, rest = profile.partition(".")
            if not rest or len(slices) < 2 or not slices.endswith("g"):
                raise InvalidRequest(
                    f"nvidia.migProfileAllowlist: profile {profile!r} is malformed: "
                    "write it like 1g.10gb"
                )


_MIG_TABLE = (
    ("A30", "1g.6gb 2g.12gb 4g.24gb"),
    ("A100-SXM4-40GB|A100-40GB-PCIe|A100-PCIE-40GB", "1g.5gb 2g.10gb 3g.20gb 7g.40gb"),
    ("A100-SXM4-80GB|A100-80GB-PCIe|A100-PCIE-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.79gb"),
    ("H100-PCIE-80GB|H100-SXM5-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.80gb"),
    ("H100-PCIE-94GB|H100-SXM5-94GB", "1g.12gb 2g.24gb 3g.47gb 7g.94gb"),
    ("H20|H100 on GH200", "1g.12gb 2g.24gb 3g.48gb 7g.96gb"),
    ("H200 NVL|H200-SXM5", "1g.18gb 2g.35gb 3g.71gb 7g.141gb"),
    ("B200", "1g.23gb 2g.45gb 3g.90gb 7g.180gb"),
    ("RTX PRO 6000 Blackwell Server Edition", "1g.24gb 2g.48gb 4g.96gb"),
)

DEFAULT_MIG_ALLOWLIST = tuple(
    MigAllowance(models=tuple(models.split("|")), profiles=tuple(profiles.split()))
    for models, profiles in _MIG_TABLE
)
"""The chart's table; a model is a part of the product name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaConfig:
    """The `nvidia:` block; the field `resource_count_name` is the key `resourceCountName`."""

    resource_count_name: str = "nvidia.com/gpu"
    resource_memory_name: str = "nvidia.com/gpumem"
    resource_memory_percentage_name: str = "nvidia.com/gpumem-percentage"
    resource_core_name: str = "nvidia.com/gpucores"
    resource_priority_name: str = "nvidia.com/priority"
    overwrite_env: bool = False
    """Give containers without a card `NVIDIA_VISIBLE_DEVICES=none`."""
    default_memory: int = 0
    """MiB for a container that says neither memory nor percentage; 0 means the whole card's."""
    default_cores: int = 0
    """Percent for a container that says no cores."""
    default_gpu_num: int = 1
    """Cards for a container that says only memory or cores; 0 means: not ours."""
    memory_factor: int = 1
    """MiB per unit of the memory resource; less than 1 counts as 1."""
    disable_core_limit: bool = False
    gpu_core_policy: str = "default"
    runtime_class_name: str = ""
    mig_profile_allowlist: tuple[MigAllowance, ...] = DEFAULT_MIG_ALLOWLIST
    device_split_count: int = 10
    """Slots per card (a node may override this and the following)."""
    device_memory_scaling: float = 1.0
    device_core_scaling: float = 1.0
    pre_configured_device_memory: int = 0
    """MiB of a card whose driver can't tell its memory."""
    lib_cuda_log_level: str = "1"
    enable_numa_topology: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """The whole file."""

    nvidia: NvidiaConfig = field(default_factory=NvidiaConfig)
    notes: tuple[str, ...] = ()
    """What was read and not used, one sentence each, for the start-up log."""


_RENAMED = {"default_gpu_num": "defaultGPUNum"}
_OLDER_KEYS = frozenset({"knownMigGeometries"})
"""Keys that HAMi 2.9 and older read."""

INT32_MAX = 2**31 - 1
"""HAMi's amounts are int32."""

_WANTED = {
    bool: "true or false",
    int: f"a whole number from 0 to {INT32_MAX}",
    float: "a number above 0",
    str: "a text",
}


def load(path: Path | None) -> DeviceConfig:
    """Reads the file; None gives the defaults.

    Raises: InvalidRequest that names the file, and the key when one is wrong.
    """
    if path is None:
        return DeviceConfig()
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise InvalidRequest(f"{path}: no readable YAML file: {exc}") from exc
    try:
        return parse(document)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc


def parse(document: object) -> DeviceConfig:
    """The configuration in a YAML document.

    Raises: InvalidRequest that names the wrong key.
    """
    if not isinstance(document, Mapping) or not document:
        raise InvalidRequest("the device configuration is empty: it needs a block such as nvidia:")
    unknown = [key for key in document if key != "nvidia" and key not in OTHER_VENDORS]
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: unknown block; the known one is nvidia")
    others = [str(key) for key in document if key != "nvidia"]
    ignored = (f"no vendor module yet, so ignored: {', '.join(others)}",) if others else ()
    block = {} if document.get("nvidia") is None else document["nvidia"]
    nvidia, notes = _block(block)
    return DeviceConfig(nvidia=nvidia, notes=notes + ignored)


def _block(block: object) -> tuple[NvidiaConfig, tuple[str, ...]]:
    """The `nvidia:` block and the notes on keys of older versions."""
    if not isinstance(block, Mapping):
        raise InvalidRequest(f"nvidia: a mapping of keys is wanted, not {block!r}")
    names = {_key_of(item.name): item.name for item in fields(NvidiaConfig)}
    types = get_type_hints(NvidiaConfig)
    values: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in block.items():
        if key in _OLDER_KEYS:
            notes.append(f"nvidia.{key}: a key of older versions; it is ignored")
        elif key not in names:
            close = get_close_matches(str(key), names, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidRequest(f"nvidia.{key}: unknown key{hint}")
        else:
            values[names[key]] = _typed(value, types[names[key]], f"nvidia.{key}")
    return NvidiaConfig(**values), tuple(notes)


def _key_of(name: str) -> str:
    """The YAML key of a field: camel case, as HAMi writes it."""
    first, *rest = name.split("_")
    return _RENAMED.get(name, first + "".join(part.capitalize() for part in rest))


def _typed(value: object, kind: object, path: str) -> object:
    """`value` as a field of type `kind` holds it."""
    if kind is bool and isinstance(value, bool):
        return value
    if not isinstance(value, bool):
        if kind is int and isinstance(value, int) and 0 <= value <= INT32_MAX:
            return value
        if kind is float and isinstance(value, int | float) and value > 0:
            return float(value)
        if kind is str and isinstance(value, str | int):
            return str(value)
    if kind in _WANTED:
        raise InvalidRequest(f"{path} is {value!r}: {_WANTED[kind]} is wanted")
    return _allowlist(value, path)


def _allowlist(value: object, path: str) -> tuple[MigAllowance, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} is {value!r}: a list of models and profiles is wanted")
    entries: list[MigAllowance] = []
    for index, entry in enumerate(value):
        where = f"{path}[{index}]"
        if not isinstance(entry, Mapping) or set(entry) != {"models", "profiles"}:
            raise InvalidRequest(f"{where}: the two keys models and profiles are wanted")
        for key in ("models", "profiles"):
            if not isinstance(entry[key], list) or not all(isinstance(x, str) for x in entry[key]):
                raise InvalidRequest(f"{where}.{key}: a list of names is wanted")
        entries.append(
            MigAllowance(models=tuple(entry["models"]), profiles=tuple(entry["profiles"]))
        )
    return tuple(entries)
