"""AdmissionReview in and out."""

import base64
import json
from typing import Any

import pytest
from hami_webhook.review import MalformedReview, allowed, read_review, refused

POD = {"kind": "Pod", "metadata": {"generateName": "train-"}, "spec": {"containers": []}}


def review(version: str = "v1", **request: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "request": {"uid": "r1", "operation": "CREATE", "namespace": "ns", "object": POD} | request,
    }


def read(document: object) -> Any:
    return read_review(json.dumps(document).encode())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_answer_has_the_version_and_the_uid_of_the_question(version: str) -> None:
    answer = allowed(read(review(version)), patch=[])

    assert answer == {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "response": {"uid": "r1", "allowed": True},
    }


def test_a_patch_travels_in_base64() -> None:
    patch = [{"op": "add", "path": "/a", "value": 1}]

    response = allowed(read(review()), patch=patch, warnings=("w",))["response"]

    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == patch
    assert response["warnings"] == ["w"]


def test_a_refusal_carries_code_reason_and_message() -> None:
    response = refused("r1", "admission.k8s.io/v1", code=403, message="no")["response"]

    assert response["status"] == {"code": 403, "reason": "Forbidden", "message": "no"}


def test_a_pod_without_a_name_is_called_by_what_its_name_starts_with() -> None:
    assert read(review()).pod_name == "train-*"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[1]", "no JSON object"),
        (b"{}", "apiVersion"),
        (b'{"apiVersion": "v1", "kind": "Pod"}', "apiVersion"),
    ],
    ids=["empty", "cut off", "a list", "an empty object", "a pod"],
)
def test_what_is_no_review_is_refused_in_one_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(MalformedReview, match=sentence) as caught:
        read_review(body)

    assert caught.value.uid == ""
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("request_part", "sentence"),
    [
        ({"object": None}, "request.object"),
        ({"object": {"kind": "Node"}}, "is a Node: this webhook is for pods"),
        ({"object": {"kind": "Pod", "spec": []}}, r"request\.object\.spec is list"),
        ({"object": POD | {"metadata": "x"}}, r"request\.object\.metadata is str"),
        (
            {"object": POD | {"metadata": {"annotations": [1]}}},
            r"request\.object\.metadata\.annotations is list",
        ),
    ],
    ids=["no object", "a node", "a list for spec", "text for metadata", "a list for annotations"],
)
def test_a_malformed_review_with_a_uid_can_be_answered(
    request_part: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(MalformedReview, match=sentence) as caught:
        read(review("v1beta1", **request_part))

    assert caught.value.uid == "r1"
    assert caught.value.api_version == "admission.k8s.io/v1beta1"
