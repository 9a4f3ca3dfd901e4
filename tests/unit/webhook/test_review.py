"""AdmissionReview in and out."""

import base64
import json
from typing import Any

import pytest
from hami_webhook.review import MalformedReview, allowed_response, read_review, refused_response

from tests.unit.webhook.reviews import review

POD = {"kind": "Pod", "metadata": {"generateName": "train-"}, "spec": {"containers": []}}


def pod_review(version: str = "v1", **request: Any) -> dict[str, Any]:
    return review(request.pop("object", POD), version, **request)


def read(document: object) -> Any:
    return read_review(json.dumps(document).encode())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_answer_has_the_version_and_the_uid_of_the_question(version: str) -> None:
    answer = allowed_response(read(pod_review(version)), patch=[])

    assert answer == {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "response": {"uid": "r1", "allowed": True},
    }


def test_a_patch_travels_in_base64() -> None:
    patch = [{"op": "add", "path": "/a", "value": 1}]

    response = allowed_response(read(pod_review()), patch=patch, warnings=("w",))["response"]

    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == patch
    assert response["warnings"] == ["w"]


def test_a_refusal_carries_code_reason_and_message() -> None:
    response = refused_response("r1", "admission.k8s.io/v1", code=403, message="no")["response"]

    assert response["status"] == {"code": 403, "reason": "Forbidden", "message": "no"}


def test_a_pod_without_a_name_is_called_by_what_its_name_starts_with() -> None:
    assert read(pod_review()).pod_name == "train-*"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "apiVersion"),
        (b'{"apiVersion": "v1", "kind": "Pod"}', "apiVersion is 'v1'"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "Pod"}', "kind is 'Pod'"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}', "request is missing"),
        (b'{"request": {"uid": 5}}', r"request\.uid: expected str, got int"),
        (b'{"request": {"operation": "CREATE"}}', "missing required field uid"),
    ],
    ids=[
        "empty",
        "cut off",
        "a list",
        "an empty object",
        "a pod",
        "another kind",
        "no request",
        "a number for uid",
        "no uid",
    ],
)
def test_what_is_no_review_is_refused_in_one_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(MalformedReview, match=sentence) as caught:
        read_review(body)

    assert caught.value.uid == ""
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("request_part", "sentence"),
    [
        ({"object": None}, r"request\.object: expected object, got null"),
        ({"operation": ["CREATE"]}, r"request\.operation: expected str, got array"),
        ({"userInfo": "alice"}, r"request\.userInfo: expected object"),
        ({"object": {"kind": "Node"}}, "is a Node: this webhook is for pods"),
        ({"object": {"kind": "Pod", "spec": []}}, r"request\.object\.spec is list"),
        ({"object": POD | {"metadata": "x"}}, r"request\.object\.metadata is str"),
        (
            {"object": POD | {"metadata": {"annotations": [1]}}},
            r"request\.object\.metadata\.annotations is list",
        ),
    ],
    ids=[
        "no object",
        "a list for operation",
        "text for user",
        "a node",
        "a list for spec",
        "text for metadata",
        "a list for annotations",
    ],
)
def test_a_malformed_review_with_a_uid_can_be_answered(
    request_part: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(MalformedReview, match=sentence) as caught:
        read(pod_review("v1beta1", **request_part))

    assert caught.value.uid == "r1"
    assert caught.value.api_version == "admission.k8s.io/v1beta1"


def with_stamp(found: bytes, odd: bytes) -> bytes:
    """A review whose pod has the stamp `v`, with one part of its JSON replaced."""
    pod = {"metadata": {"annotations": {"hami.io/traceparent": "v"}}, "spec": {}}
    body = json.dumps(pod_review(object=pod)).encode()
    assert found in body
    return body.replace(found, odd, 1)


@pytest.mark.parametrize(
    ("found", "odd"),
    [
        (b'"v"', b'"\xff"'),
        (b'"v"', b'"\\ud800"'),
        (b'"v"', b"1e999"),
        (b'"v"', b"[" * 5000 + b"]" * 5000),
        (b"}}}", b"}}}}"),
    ],
    ids=["no UTF-8", "half a character", "a huge number", "deep", "one brace too many"],
)
def test_json_that_no_api_server_writes_is_refused_in_one_sentence(
    found: bytes, odd: bytes
) -> None:
    with pytest.raises(MalformedReview) as caught:
        read_review(with_stamp(found, odd))

    assert "\n" not in str(caught.value)


def test_an_escaped_key_is_the_key() -> None:
    escaped = with_stamp(b'"hami.io/traceparent"', b'"hami.io\\/tracep\\u0061rent"')

    assert read_review(escaped).stamp == "v"


def test_of_a_name_that_comes_twice_the_last_one_counts() -> None:
    assert read_review(with_stamp(b'"ns"', b'"ns", "namespace": "second"')).namespace == "second"
