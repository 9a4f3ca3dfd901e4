"""Reads one block of the device configuration into the dataclass that describes it.

The dataclass is the whole schema: its fields give the keys (camel case, as HAMi writes them), their
types and their defaults. What a type cannot express the dataclass checks itself when it is made;
the path of the block is put before its error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from hamicommon.errors import InvalidRequest

INT32_MAX = 2**31 - 1
"""HAMi's amounts are int32."""

_INITIALS = frozenset({"gpu", "cpu", "gcu", "vgcu", "drs"})
"""Parts that HAMi's keys write in capitals, when they are not the first."""
_RESOURCE = re.compile(r"(?=.{3,317}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9][A-Za-z0-9._-]*")
"""An extended resource: a domain, a slash and a name."""
_WANTED: Mapping[object, str] = {
    bool: "true or false",
    int: f"a whole number from 0 to {INT32_MAX}",
    float: "a number above 0",
    str: "a text",
}

T = TypeVar("T")


def read_block(value: object, block: type[T], path: str, notes: list[str]) -> T:
    """`value` as a `block`; keys of older versions are left out and noted in `notes`.

    A block may name such keys in a class variable `OLDER_KEYS`.

    Raises: InvalidRequest with the path of the wrong key, its value and what would be right.
    """
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{path}: expected a mapping of keys, not {value!r}")
    names = keys_of(block)
    types = get_type_hints(block)
    values: dict[str, Any] = {}
    for key, entry in value.items():
        if key in getattr(block, "OLDER_KEYS", ()):
            notes.append(f"{path}.{key}: a key of older versions; it is ignored")
        elif key in names:
            values[names[key]] = read_value(entry, types[names[key]], f"{path}.{key}", notes)
        else:
            raise InvalidRequest(f"{path}.{key}: unknown key{did_you_mean(key, names)}")
    for key, name in names.items():
        if name not in values and _is_required(block, name):
            raise InvalidRequest(f"{path}: the key {key} is missing")
    try:
        return block(**values)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc


def read_value(value: object, kind: Any, path: str, notes: list[str]) -> object:
    """`value` as a field of type `kind` holds it; None is never such a value.

    Raises: InvalidRequest with the path of the wrong key, its value and what would be right.
    """
    if get_origin(kind) is UnionType:
        kind = next(x for x in get_args(kind) if x is not NoneType)
    if get_origin(kind) is tuple:
        return _list(value, get_args(kind)[0], path, notes)
    if is_dataclass(kind) and isinstance(kind, type):
        return read_block(value, kind, path, notes)
    if kind is bool and isinstance(value, bool):
        return value
    if not isinstance(value, bool):
        if kind is int and isinstance(value, int) and 0 <= value <= INT32_MAX:
            return value
        if kind is float and isinstance(value, int | float) and value > 0:
            return float(value)
        if kind is str and isinstance(value, str | int):
            return _text(str(value), path)
    raise InvalidRequest(f"{path} is {value!r}: expected {_WANTED[kind]}")


def did_you_mean(key: object, known: Mapping[str, object]) -> str:
    """A hint to the known key that is nearest; empty when none is near."""
    close = get_close_matches(str(key), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def keys_of(block: type[Any]) -> dict[str, str]:
    """The field of each key of a block."""
    return {_key_of(item.name): item.name for item in fields(block)}


def _key_of(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(x.upper() if x in _INITIALS else x.capitalize() for x in rest)


def _is_required(block: type[Any], name: str) -> bool:
    item = block.__dataclass_fields__[name]
    return item.default is MISSING and item.default_factory is MISSING


def _list(value: object, kind: Any, path: str, notes: list[str]) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} is {value!r}: expected a list")
    return tuple(read_value(x, kind, f"{path}[{index}]", notes) for index, x in enumerate(value))


def _text(value: str, path: str) -> str:
    """A text; under a key such as `resourceCountName` it must be a resource's name or empty."""
    is_resource = path.rpartition(".")[2].startswith("resource")
    if is_resource and value and not _RESOURCE.fullmatch(value):
        raise InvalidRequest(
            f"{path} is {value!r}: expected the name of an extended resource, "
            "such as example.com/gpu"
        )
    return value
