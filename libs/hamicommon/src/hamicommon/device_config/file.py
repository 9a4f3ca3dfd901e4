"""The device configuration as a whole: reading the file, and what must hold between its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from hamicommon.device_config.ascend import VnpusConfig
from hamicommon.device_config.blocks import (
    ILUVATAR_CHIPS,
    AmdConfig,
    AwsNeuronConfig,
    BirenConfig,
    CambriconConfig,
    EnflameConfig,
    HygonConfig,
    IluvatarChip,
    KunlunConfig,
    MetaxConfig,
    MthreadsConfig,
    VastaiConfig,
)
from hamicommon.device_config.nvidia import NvidiaConfig
from hamicommon.device_config.reader import did_you_mean, keys_of, read_value
from hamicommon.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """The whole file; a vendor whose block is None (or an empty list) is not served."""

    nvidia: NvidiaConfig | None = field(default_factory=NvidiaConfig)
    cambricon: CambriconConfig | None = field(default_factory=CambriconConfig)
    hygon: HygonConfig | None = field(default_factory=HygonConfig)
    metax: MetaxConfig | None = field(default_factory=MetaxConfig)
    enflame: EnflameConfig | None = field(default_factory=EnflameConfig)
    mthreads: MthreadsConfig | None = field(default_factory=MthreadsConfig)
    iluvatars: tuple[IluvatarChip, ...] = ILUVATAR_CHIPS
    kunlun: KunlunConfig | None = field(default_factory=KunlunConfig)
    awsneuron: AwsNeuronConfig | None = field(default_factory=AwsNeuronConfig)
    amd: AmdConfig | None = field(default_factory=AmdConfig)
    vastai: VastaiConfig | None = field(default_factory=VastaiConfig)
    biren: BirenConfig | None = field(default_factory=BirenConfig)
    vnpus: VnpusConfig | None = field(default_factory=VnpusConfig)
    notes: tuple[str, ...] = ()
    """Entries that were not used, or left out, one sentence each, for the start-up log."""

    def __post_init__(self) -> None:
        _refuse_twice(self)


_BLOCKS = tuple(item.name for item in fields(DeviceConfig) if item.name != "notes")
_LISTS = frozenset({"iluvatars"})

_OF_NVIDIAS_PLUGIN = frozenset({"version", "flags", "resources", "sharing", "imex"})
"""Blocks that HAMi's device plugin hands on to NVIDIA's (protocol 5.1); nothing here reads them."""


def load(path: Path | None) -> DeviceConfig:
    """Read the file; None gives the defaults.

    Raises: InvalidRequest that names the file, and the key when one is wrong.
    """
    if path is None:
        return DeviceConfig()
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidRequest(f"{path}: no readable YAML file: {exc.strerror}") from exc
    except (UnicodeDecodeError, yaml.YAMLError) as exc:
        reason = " ".join(str(exc).split())
        raise InvalidRequest(f"{path}: no readable YAML file: {reason}") from exc
    try:
        return parse(document)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc


def parse(document: object) -> DeviceConfig:
    """The configuration in a YAML document.

    A block that is there has the defaults for the keys that it leaves out; a vendor without a block
    is not served, as in HAMi.

    Raises: InvalidRequest that names the wrong key.
    """
    if document is not None and not isinstance(document, Mapping):
        raise InvalidRequest(
            f"the device configuration is {document!r:.60}: expected blocks such as nvidia:"
        )
    if document is None or all(
        block is None or key in _OF_NVIDIAS_PLUGIN for key, block in document.items()
    ):
        raise InvalidRequest("the device configuration is empty: it needs a block such as nvidia:")
    known = dict.fromkeys(_BLOCKS)
    for key in document:
        if key not in known and key not in _OF_NVIDIAS_PLUGIN:
            raise InvalidRequest(f"{key}: unknown block{did_you_mean(key, known)}")
    notes: list[str] = []
    types = get_type_hints(DeviceConfig)
    blocks: dict[str, Any] = {name: () if name in _LISTS else None for name in _BLOCKS}
    for name, block in document.items():
        if block is not None and name in known:
            written = _of_today(name, block, notes)
            blocks[name] = read_value(written, types[name], name, notes)
    absent = [name for name in _BLOCKS if document.get(name) is None]
    if absent:
        notes.append(f"not served, because the file has no such block: {', '.join(absent)}")
    return DeviceConfig(**blocks, notes=tuple(notes))


def _of_today(name: str, block: object, notes: list[str]) -> object:
    """The block in the form that HAMi 2.10 reads."""
    if name == "vnpus" and isinstance(block, list):
        notes.append("vnpus: a list is the form of older versions; it is read as vnpus.configs")
        return {"configs": block}
    return block


def _texts(value: object, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Every text in the blocks: the path of its key, the field's name, and the text."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for key, name in keys_of(type(value)).items():
            inner = getattr(value, name)
            where = f"{path}.{key}" if path else key
            if isinstance(inner, str):
                yield where, name, inner
            else:
                yield from _texts(inner, where)


def _refuse_twice(config: DeviceConfig) -> None:
    """Raises InvalidRequest when two keys name one resource, or two chips have one name."""
    seen: dict[tuple[str, str], str] = {}
    for path, name, text in _texts(config):
        kind = "resource" if name.startswith("resource_") else name
        if kind in ("resource", "common_word") and text:
            first = seen.setdefault((kind, text), path)
            if first != path:
                raise InvalidRequest(
                    f"{path} is {text!r}, which {first} is already: each must be different"
                )
