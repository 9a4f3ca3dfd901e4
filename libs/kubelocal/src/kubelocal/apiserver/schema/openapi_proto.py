"""OpenAPI v2 in protobuf (gnostic's `openapi.v2.Document`), the form in which kubectl asks for it.

client-go has no other (discovery_client.go, `OpenAPISchema`); kubectl 1.20 to 1.36 want it for
`apply` and `create`.

Only the messages and fields that `openapi.v2()` uses are encoded; the numbers are those of
gnostic's OpenAPIv2.proto.
"""

from __future__ import annotations

from functools import cache

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema import openapi

_VERBS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}


@cache
def document() -> bytes:
    """The encoded document."""
    body = openapi.v2()
    info = _text(1, body["info"]["title"]) + _text(2, body["info"]["version"])
    paths = b"".join(
        _message(2, _text(1, path) + _message(2, _path_item(item)))
        for path, item in body["paths"].items()
    )
    definitions = b"".join(
        _message(1, _named_schema(name, item)) for name, item in body["definitions"].items()
    )
    return b"".join(
        (
            _text(1, body["swagger"]),
            _message(2, info),
            _message(8, paths),
            _message(9, definitions),
        )
    )


def _path_item(item: Json) -> bytes:
    return b"".join(_message(_VERBS[verb], _operation(each)) for verb, each in item.items())


def _operation(operation: Json) -> bytes:
    parameters = b"".join(_message(8, _query(each)) for each in operation.get("parameters", ()))
    responses = b"".join(
        _message(1, _text(1, code) + _message(2, _message(1, _text(1, each["description"]))))
        for code, each in operation["responses"].items()
    )
    return parameters + _message(9, responses) + _extensions(13, operation)


def _query(parameter: Json) -> bytes:
    """A ParametersItem that holds a Parameter that holds a query parameter."""
    query = _text(2, parameter["in"]) + _text(4, parameter["name"]) + _text(6, parameter["type"])
    return _message(1, _message(2, _message(3, query)))


def _named_schema(name: str, item: Json) -> bytes:
    return _text(1, name) + _message(2, _schema(item))


def _schema(item: Json) -> bytes:
    parts = [_text(1, item.get("$ref", "")), _text(2, item.get("format", ""))]
    parts += [_text(19, name) for name in item.get("required", ())]
    if (values := item.get("additionalProperties")) is not None:
        parts.append(_message(21, _message(1, _schema(values))))
    if kind := item.get("type"):
        parts.append(_message(22, _text(1, kind)))
    if (elements := item.get("items")) is not None:
        parts.append(_message(23, _message(1, _schema(elements))))
    if (fields := item.get("properties")) is not None:
        named = (_message(1, _named_schema(name, each)) for name, each in fields.items())
        parts.append(_message(25, b"".join(named)))
    parts.append(_extensions(31, item))
    return b"".join(parts)


def _extensions(number: int, item: Json) -> bytes:
    """Vendor extensions travel as YAML texts; JSON is YAML."""
    return b"".join(
        _message(number, _text(1, name) + _message(2, _text(2, orjson.dumps(value).decode())))
        for name, value in item.items()
        if name.startswith("x-")
    )


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode()) if value else b""


def _message(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
