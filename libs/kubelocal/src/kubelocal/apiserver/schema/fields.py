"""Fields of all served objects: known ones are kept, wrong types are refused.

In: decoded JSON. Out: a fresh object with only known fields, nulls dropped, quantities and times in
canonical form. The field table is `_generated/fields.json` (`scripts/kubernetes-schema`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import quantities
from hamicommon.k8s.types import Json

Convert = Callable[[Any, str, "FieldFindings"], Any]
_FILE = Path(__file__).parents[1] / "_generated" / "fields.json"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
# MicroTime is read with exactly six digits; anything else is refused by the real server too.
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")

_NO_QUANTITY = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_BAD_SUFFIX = "unable to parse quantity's suffix"


class Unreadable(ValueError):
    """Error: a value has the wrong type; the message names path and type."""


@dataclass(slots=True)
class FieldFindings:
    """Result of reading an object: paths of unknown fields."""

    unknown: list[str] = field(default_factory=list)


@cache
def definitions() -> dict[str, Any]:
    """Return all definitions: {definition: {field: type}}."""
    loaded: dict[str, Any] = orjson.loads(_FILE.read_bytes())
    return loaded


def field_type(definition: str, name: str) -> str:
    """Return the type of a field, or an empty string if there is no such field."""
    found: str = definitions().get(definition, {}).get(name, "")
    return found


def clean(definition: str, value: Any) -> tuple[Json, list[str]]:
    """Return the object without unknown fields, and the paths of these.

    Raises: Unreadable where a value has the wrong type.
    """
    findings = FieldFindings()
    kept: Json = _struct(definition)(value, "", findings)
    return kept, findings.unknown


@cache
def _struct(definition: str) -> Convert:
    types: dict[str, str] = definitions()[definition]
    converters: dict[str, Convert] = {}

    def convert(value: Any, path: str, findings: FieldFindings) -> Json:
        if not isinstance(value, dict):
            raise Unreadable(_cannot(value, path, definition))
        kept: Json = {}
        for name, item in value.items():
            if item is None:
                continue
            if name not in types:
                findings.unknown.append(f"{path}.{name}".lstrip("."))
                continue
            converter = converters.get(name)
            if converter is None:
                converter = converters[name] = _converter(types[name])
            result = converter(item, f"{path}.{name}", findings)
            # The Go server leaves empty lists and maps out.
            if result or not (types[name].startswith("[]") or types[name].startswith("{}")):
                kept[name] = result
        return kept

    return convert


@cache
def _converter(kind: str) -> Convert:
    if kind.startswith("[]"):
        return _list(_converter(kind[2:]))
    if kind.startswith("{}"):
        return _map(_converter(kind[2:]))
    return _PLAIN[kind] if kind in _PLAIN else _struct(kind)


def _list(element: Convert) -> Convert:
    def convert(value: Any, path: str, findings: FieldFindings) -> list[Any]:
        if not isinstance(value, list):
            raise Unreadable(_cannot(value, path, "[]"))
        return [
            element(item, f"{path}[{index}]", findings)
            for index, item in enumerate(value)
            if item is not None
        ]

    return convert


def _map(element: Convert) -> Convert:
    def convert(value: Any, path: str, findings: FieldFindings) -> Json:
        if not isinstance(value, dict):
            raise Unreadable(_cannot(value, path, "map[string]string"))
        return {
            name: element(item, f"{path}[{name}]", findings)
            for name, item in value.items()
            if item is not None
        }

    return convert


def _quantity(value: Any, path: str, findings: FieldFindings) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Unreadable(_cannot(value, path, "resource.Quantity"))
    try:
        return quantities.canonical(str(value).strip())
    except quantities.NoSuchSuffix as error:
        raise Unreadable(f"{path.lstrip('.')}: {_BAD_SUFFIX}") from error
    except InvalidRequest as error:
        raise Unreadable(f"{path.lstrip('.')}: {_NO_QUANTITY}") from error


def _plain(types: type | tuple[type, ...], go_name: str) -> Convert:
    """Return a check for values of these types, in which a boolean is no number."""

    def convert(value: Any, path: str, findings: FieldFindings) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            raise Unreadable(_cannot(value, path, go_name))
        return value

    return convert


def _time(value: Any, path: str, findings: FieldFindings) -> str:
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        raise Unreadable(_bad_time(value, path, "2006-01-02T15:04:05Z07:00"))
    return _utc(value, path).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(value: Any, path: str, findings: FieldFindings) -> str:
    if not isinstance(value, str) or _MICRO_TIME.fullmatch(value) is None:
        raise Unreadable(_bad_time(value, path, "2006-01-02T15:04:05.000000Z07:00"))
    return _utc(value, path).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _utc(text: str, path: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError as error:
        raise Unreadable(_bad_time(text, path, "2006-01-02T15:04:05Z07:00")) from error


def _bytes(value: Any, path: str, findings: FieldFindings) -> str:
    if not isinstance(value, str):
        raise Unreadable(_cannot(value, path, "[]uint8"))
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise Unreadable(f"{path.lstrip('.')}: illegal base64 data") from error
    return value


_PLAIN: dict[str, Convert] = {
    "string": _plain(str, "string"),
    "integer": _plain(int, "int64"),
    "number": _plain((int, float), "float64"),
    "boolean": _plain(bool, "bool"),
    "intorstring": _plain((int, str), "intstr.IntOrString"),
    "time": _time,
    "microtime": _micro_time,
    "bytes": _bytes,
    "quantity": _quantity,
    "any": lambda value, path, findings: value,
}
_GO_NAMES = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}


def _cannot(value: Any, path: str, wanted: str) -> str:
    got = _GO_NAMES.get(type(value), "object")
    return f"json: cannot unmarshal {got} into Go struct field {path.lstrip('.')} of type {wanted}"


def _bad_time(value: Any, path: str, layout: str) -> str:
    return f'{path.lstrip(".")}: parsing time "{value}" as "{layout}": cannot parse'
