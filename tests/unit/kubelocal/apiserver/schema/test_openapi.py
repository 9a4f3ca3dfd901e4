import orjson
import pytest
from kubelocal.apiserver.schema import openapi, openapi_proto
from kubelocal.apiserver.schema.resources import RESOURCES


def test_every_kind_has_a_definition_with_its_name() -> None:
    kinds = {
        (each["group"], each["version"], each["kind"])
        for definition in openapi.v2()["definitions"].values()
        for each in definition.get("x-kubernetes-group-version-kind", [])
    }
    assert kinds == {(each.group, each.version, each.kind) for each in RESOURCES}


def test_references_lead_somewhere() -> None:
    for document, definitions in (
        (openapi.v2(), openapi.v2()["definitions"]),
        (openapi.v3("api/v1"), (openapi.v3("api/v1") or {})["components"]["schemas"]),
    ):
        text = orjson.dumps(document).decode()
        for reference in {part.split('"')[0] for part in text.split('"$ref":"')[1:]}:
            assert reference.rpartition("/")[2] in definitions


def test_merge_keys_are_described() -> None:
    containers = openapi.v2()["definitions"]["io.k8s.api.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert containers["x-kubernetes-patch-strategy"] == "merge"


@pytest.mark.parametrize(
    ("definition", "name"),
    [
        ("V1Pod", "io.k8s.api.v1.Pod"),
        ("CoreV1Event", "io.k8s.api.core.v1.Event"),
        ("V1alpha3WorkloadPodGroup", "io.k8s.api.v1alpha3.WorkloadPodGroup"),
    ],
)
def test_public_names(definition: str, name: str) -> None:
    assert openapi.public_name(definition) == name


def test_the_protobuf_form_is_well_formed() -> None:
    data, fields, position = openapi_proto.document(), [], 0
    while position < len(data):
        key, position = _varint(data, position)
        assert key & 7 == 2
        length, position = _varint(data, position)
        fields.append(key >> 3)
        position += length
    assert fields == [1, 2, 8, 9]
    assert position == len(data)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
