import pytest
from kubelocal.apiserver.wire import protobuf
from kubelocal.apiserver.wire.protobuf import Malformed

# What kubectl 1.32 sends for `kubectl create configmap cm --from-literal=a=b`.
CONFIG_MAP = bytes.fromhex(
    "6b3873000a0f0a0276311209436f6e6669674d6170121c0a120a02636d12001a0022002a0032003800420012060a"
    "01611201621a002200"
)


def field(number: int, payload: bytes) -> bytes:
    assert len(payload) < 128
    return bytes([number << 3 | 2, len(payload)]) + payload


def envelope(kind: str, body: bytes, version: str = "v1") -> bytes:
    about = field(1, version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, about) + field(2, body)


def test_the_body_of_a_new_kubectl() -> None:
    assert protobuf.decode(CONFIG_MAP) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cm", "generation": 0},
        "data": {"a": "b"},
    }


def test_embedded_messages_are_fields_of_their_parent() -> None:
    empty_dir = field(2, field(2, b""))
    volume = field(1, field(1, b"v") + empty_dir)
    body = protobuf.decode(envelope("Pod", field(2, volume)))
    assert body["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]


def test_amounts_times_and_numbers() -> None:
    hard = field(1, field(1, b"pods") + field(2, field(1, b"5")))
    body = protobuf.decode(envelope("ResourceQuota", field(2, hard)))
    assert body["spec"] == {"hard": {"pods": "5"}}
    lease = field(2, field(4, b"\x08\x80\xa4\xd4\xca\x06\x10\xe8\x07"))
    body = protobuf.decode(envelope("Lease", lease, "coordination.k8s.io/v1"))
    assert body["spec"]["renewTime"].endswith(".000001Z")
    options = protobuf.decode(envelope("DeleteOptions", b"\x08\x00"))
    assert options["gracePeriodSeconds"] == 0
    negative = protobuf.decode(envelope("DeleteOptions", b"\x08" + b"\xff" * 9 + b"\x01"))
    assert negative["gracePeriodSeconds"] == -1


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "magic"),
        (b"{}", "magic"),
        (envelope("Nonsense", b""), "no kind Nonsense"),
        (envelope("ConfigMap", field(2, b"x")[:2]), "unexpected EOF"),
        (envelope("ConfigMap", b"\x7a\x01x"), "field 15 of V1ConfigMap"),
        (envelope("ConfigMap", b"\x08\x01"), "length-delimited"),
        (envelope("ConfigMap", b"\x0b"), "wire type"),
        (CONFIG_MAP[:-20], "unexpected EOF"),
    ],
)
def test_bytes_that_are_no_object_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(Malformed, match=text):
        protobuf.decode(data)


def test_a_newer_field_that_is_empty_does_not_matter() -> None:
    assert protobuf.decode(envelope("ConfigMap", b"\x7a\x00"))["kind"] == "ConfigMap"
