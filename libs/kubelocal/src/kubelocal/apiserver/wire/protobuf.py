"""Decode request bodies in Kubernetes' protobuf format, which Go clients and kubectl send.

In: the bytes of a request. Out: the same object as JSON has it. Answers are JSON always; all
clients accept it. The numbers of the fields are `_generated/protobuf_numbers.json`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema import fields
from kubelocal.apiserver.schema.resources import BY_KIND

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_FILE = Path(__file__).parents[1] / "_generated" / "protobuf_numbers.json"
_OPTIONS = {"DeleteOptions": "V1DeleteOptions", "Eviction": "V1Eviction"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Value = int | bytes


class Malformed(ValueError):
    """Error: the bytes are no message, or have an unknown field."""


def decode(data: bytes) -> Json:
    """Decode the object in a body. Raises: Malformed."""
    if not data.startswith(_MAGIC):
        raise Malformed("the body does not begin with the magic number of Kubernetes' protobuf")
    envelope = dict(_fields(data[len(_MAGIC) :]))
    about = dict(_fields(_as_bytes(envelope.get(1, b""))))
    version, kind = (_as_bytes(about.get(number, b"")).decode() for number in (1, 2))
    resource = BY_KIND.get((version, kind))
    definition = resource.schema if resource is not None else _OPTIONS.get(kind, "")
    if not definition:
        raise Malformed(f"no kind {kind} is registered for version {version}")
    body = _message(definition, _as_bytes(envelope.get(2, b"")))
    return {"apiVersion": version, "kind": kind} | body


@cache
def _table() -> dict[str, Any]:
    loaded: dict[str, Any] = orjson.loads(_FILE.read_bytes())
    return loaded


def _message(definition: str, data: bytes) -> Json:
    body: Json = {}
    _fill(body, definition, _table().get(definition, {}), data)
    return body


def _fill(body: Json, definition: str, numbers: Json, data: bytes) -> None:
    for number, raw in _fields(data):
        name = numbers.get(str(number))
        if name is None and raw in (b"", 0):
            continue  # a newer field that the client leaves empty
        if name is None:
            raise Malformed(f"field {number} of {definition} is not known here; send JSON instead")
        if isinstance(name, dict):
            _fill(body, definition, name, _as_bytes(raw))
            continue
        kind = fields.field_type(definition, name)
        if kind.startswith("[]"):
            body.setdefault(name, []).append(_value(kind[2:], raw))
        elif kind.startswith("{}"):
            entry = dict(_fields(_as_bytes(raw)))
            key = _as_bytes(entry.get(1, b"")).decode()
            body.setdefault(name, {})[key] = _value(kind[2:], entry.get(2, b""))
        elif (value := _value(kind, raw)) not in ("", None):
            body[name] = value  # an empty text is Go's way to leave it out


def _value(kind: str, raw: Value) -> Any:
    match kind:
        case "string":
            return _as_bytes(raw).decode()
        case "integer":
            return _as_signed(raw)
        case "boolean":
            return bool(raw)
        case "number":
            return struct.unpack("<d", _as_bytes(raw))[0]
        case "bytes":
            return base64.b64encode(_as_bytes(raw)).decode()
        case "quantity":
            return _as_bytes(dict(_fields(_as_bytes(raw))).get(1, b"0")).decode()
        case "time" | "microtime":
            return _time(kind, dict(_fields(_as_bytes(raw))))
        case "intorstring":
            parts = dict(_fields(_as_bytes(raw)))
            is_text = parts.get(1, 0)
            return _as_bytes(parts.get(3, b"")).decode() if is_text else _as_signed(parts.get(2, 0))
        case "any":
            return None  # only who manages which field, which we do not keep
    return _message(kind, _as_bytes(raw))


def _time(kind: str, parts: dict[int, Value]) -> str | None:
    if not parts:
        return None
    seconds, nanos = _as_signed(parts.get(1, 0)), _as_signed(parts.get(2, 0))
    moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if kind == "microtime" else "%Y-%m-%dT%H:%M:%SZ")


def _as_signed(raw: Value) -> int:
    if not isinstance(raw, int):
        raise Malformed("a number was expected")
    return raw - (1 << 64) if raw >= 1 << 63 else raw


def _as_bytes(raw: Value) -> bytes:
    if not isinstance(raw, bytes):
        raise Malformed("a length-delimited value was expected")
    return raw


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of each field. Raises: Malformed."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire = key & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise Malformed(f"unknown wire type {wire}")
        if position + length > len(data):
            raise Malformed("unexpected EOF")
        yield key >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise Malformed("unexpected EOF")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
