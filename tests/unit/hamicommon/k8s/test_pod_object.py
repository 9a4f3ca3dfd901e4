"""A pod's owner, read from an object whose author may have written anything."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hamicommon.clipping import CLIP_LIMIT
from hamicommon.domain.pod_ref import PodOwner
from hamicommon.k8s.annotations import CREATED_BY
from hamicommon.k8s.event_names import event_name
from hamicommon.k8s.pod_object import owner_of

UID = "6d9f5c1e-0000-4000-8000-000000000001"


def pod(*references: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"ownerReferences": list(references), **metadata},
        "spec": {"serviceAccountName": "trainer"},
    }


def reference(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "uid": UID, "controller": True, **more}


def test_the_controller_is_the_owner_and_others_are_not() -> None:
    found = owner_of(pod(reference("Workflow", "w", controller=False), reference("Job", "train-1")))

    assert (found.kind, found.name, found.uid) == ("Job", "train-1", UID)
    assert (found.deployment, found.service_account) == ("", "trainer")


@pytest.mark.parametrize(
    ("kind", "name", "template_hash", "deployment"),
    [
        ("ReplicaSet", "web-6d5f8c7b9", "6d5f8c7b9", "web"),
        ("ReplicaSet", "web-6d5f8c7b9", "", ""),
        ("ReplicaSet", "web", "6d5f8c7b9", ""),
        ("ReplicaSet", "web-b-6d5f8c7b9", "b", ""),
        ("StatefulSet", "web-6d5f8c7b9", "6d5f8c7b9", ""),
    ],
)
def test_a_deployment_is_seen_through_its_replica_set_alone(
    kind: str, name: str, template_hash: str, deployment: str
) -> None:
    labels = {"pod-template-hash": template_hash}

    assert owner_of(pod(reference(kind, name), labels=labels)).deployment == deployment


def test_a_bare_pod_has_no_owner_which_is_not_an_unknown_one() -> None:
    assert owner_of({"metadata": {}, "spec": {}}) == PodOwner()


def test_only_the_labels_that_were_chosen_are_kept() -> None:
    labels = {"team": "nlp", "app": "bert", "secret": "x"}

    found = owner_of(pod(labels=labels), ("team", "app", "absent"))

    assert found.labels == {"team": "nlp", "app": "bert"}


def test_the_creator_is_believed_where_admission_has_seen_the_pod() -> None:
    given = pod(annotations={CREATED_BY: "alice"})

    assert owner_of(given).created_by == "alice"
    assert owner_of(given, stamped=False).created_by is None
    assert owner_of(pod()).created_by is None


@pytest.mark.parametrize("odd", [None, "text", {}, {"controller": "true"}, ["list"], 7])
def test_a_reference_of_an_odd_shape_owns_nothing(odd: Any) -> None:
    assert owner_of(pod(odd)).kind == ""


def test_every_text_is_bounded_and_on_one_line() -> None:
    long = "x\n" * 100_000
    found = owner_of(
        pod(
            reference(long, long, uid=long),
            labels={"team": long, "pod-template-hash": long},
            annotations={CREATED_BY: long},
        ),
        ("team",),
    )

    texts = [found.kind, found.name, found.uid, found.deployment, found.labels["team"]]
    for text in [*texts, found.created_by or ""]:
        assert len(text) <= CLIP_LIMIT
        assert text.isprintable()


# --- events can be made about objects of any name


SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@pytest.mark.parametrize("cut", ["a", "-", ".", "--", "-x", ".x"])
def test_an_object_with_the_longest_name_has_events(cut: str) -> None:
    involved = ("a" * (200 - len(cut)) + cut).ljust(253, "b")

    made = event_name(involved, "0" * 16)

    assert len(made) <= 253
    assert SUBDOMAIN.fullmatch(made)


def test_a_short_name_is_kept_whole() -> None:
    assert event_name("pod-1", "ab") == "pod-1.ab"
