"""Discovery of the server's kinds, and the one OpenAPI document that kubectl reads."""

from collections.abc import Iterator

import orjson
from kubelocal.apiserver.schema import discovery
from kubelocal.apiserver.schema.resources import RESOURCES


def test_every_group_and_kind_is_found() -> None:
    groups = {each["name"] for each in (discovery.discover("/apis") or {})["groups"]}
    documents = [discovery.discover(f"/apis/{group}/v1") for group in groups]
    rows = [
        row
        for document in (discovery.discover("/api/v1"), *documents)
        for row in (document or {})["resources"]
    ]
    assert {each.kind for each in RESOURCES} <= {row["kind"] for row in rows}
    assert discovery.discover("/apis/nope/v1") is None


def test_kubectl_reads_that_every_stored_kind_validates_fields() -> None:
    found = set()
    for number, paths in _fields(discovery.openapi()):
        if number != 8:
            continue
        for _, named_path in _fields(paths):
            item = dict(_fields(named_path))[2]
            operation = list(_fields(dict(_fields(item))[8]))
            parameters = [value for number, value in operation if number == 8]
            assert any(b"fieldValidation" in each for each in parameters)
            [extension] = [value for number, value in operation if number == 13]
            name, value = (part for _, part in _fields(extension))
            assert name == b"x-kubernetes-group-version-kind"
            gvk = orjson.loads(dict(_fields(value))[2])
            found.add((gvk["group"], gvk["version"], gvk["kind"]))
    assert found == {(each.group, "v1", each.kind) for each in RESOURCES if each.stored}


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        assert key & 7 == 2
        length, position = _varint(data, position)
        yield key >> 3, data[position : position + length]
        position += length
    assert position == len(data)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
