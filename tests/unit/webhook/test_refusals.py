"""An auditor's data of a refusal: the user, the impersonator, the controller, and the reason."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hami_webhook.refusals import MAX_GROUPS, refusal_of
from hami_webhook.review import read_review
from hamicommon.clipping import CLIP_LIMIT
from hamicommon.events import AdmissionRefused

from tests.unit.webhook.reviews import review

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOSTILE = "\0\n\x1b[31m" + "x" * 100_000


def make_refusal(pod: dict[str, Any], **request: Any) -> AdmissionRefused:
    read = read_review(json.dumps(review(pod, namespace="team", **request)).encode())
    return refusal_of(read, reason="privileged", code=403, message="no", at=NOW)


def pod(**metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"containers": [], "serviceAccountName": "trainer"}}


def test_it_names_user_groups_service_account_and_controller() -> None:
    owners = [
        {"kind": "Thing", "name": "other"},
        {"kind": "ReplicaSet", "name": "train-7d4b", "controller": True},
    ]
    user = {"username": "alice", "groups": ["devs", "system:authenticated"]}

    found = make_refusal(pod(generateName="train-7d4b-", ownerReferences=owners), userInfo=user)

    assert (found.user, found.groups) == ("alice", ("devs", "system:authenticated"))
    assert (found.pod_name, found.generate_name) == ("train-7d4b-*", "train-7d4b-")
    assert (found.owner_kind, found.owner_name) == ("ReplicaSet", "train-7d4b")
    assert found.service_account == "trainer"
    assert (found.operation, found.subresource, found.code) == ("CREATE", "", 403)


def test_an_ephemeral_container_is_distinguished_from_a_new_pod() -> None:
    found = make_refusal(pod(name="p"), operation="UPDATE", subResource="ephemeralcontainers")

    assert (found.operation, found.subresource) == ("UPDATE", "ephemeralcontainers")
    assert found.generate_name == ""


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": HOSTILE},
        {"ownerReferences": [HOSTILE, {"kind": 5, "name": None}]},
        {"ownerReferences": [{"kind": HOSTILE, "name": HOSTILE, "controller": "yes"}]},
        {"generateName": HOSTILE},
    ],
)
def test_whatever_users_chose_is_bounded_and_on_one_line(metadata: dict[str, Any]) -> None:
    user = {"username": HOSTILE, "groups": [HOSTILE, 5, None] * 100}

    found = make_refusal(pod(**metadata), userInfo=user)

    assert len(found.groups) == MAX_GROUPS
    texts = (found.user, *found.groups, found.owner_kind, found.owner_name, found.pod_name)
    assert all(text.isprintable() and len(text) <= CLIP_LIMIT for text in texts)


def test_a_reader_takes_a_refusal_of_an_older_webhook() -> None:
    older = {"review_uid": "r", "namespace": "n", "pod_name": "p", "user": "u", "reason": "x"}
    older |= {"said": "no", "at": NOW.isoformat()}  # codespell:ignore said

    assert AdmissionRefused.model_validate(older).groups == ()
