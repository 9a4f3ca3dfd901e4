"""The watch's view of the node's pods is computed again when one of them changes."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

import pytest
from hami_node_agent.adapters.kubernetes.pod_fields import CONFIG_HASH, MIRROR, kept_of, literal_env
from hami_node_agent.adapters.kubernetes.pods import NodePods
from hami_node_agent.grants.records import PodsSeen
from hamicommon.domain.ids import PodUid
from hamicommon.k8s.pod_annotations import PRELOAD


def a_pod(uid: str, phase: str) -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "namespace": "ns", "name": uid},
        "status": {"phase": phase},
    }


def a_seen(*, ended: str = "", bound: str = "") -> PodsSeen:
    return PodsSeen(ended=frozenset(map(PodUid, ended)), bound=frozenset(map(PodUid, bound)))


def test_pods_come_end_and_go() -> None:
    api: Any = AsyncMock()
    pods = NodePods(api, node="n", resource="nvidia.com/gpu", key=None)
    seen = [pods.snapshot()]
    for uid, phase in (("a", "Pending"), ("b", "Running"), ("b", "Succeeded")):
        pods._on_upsert(a_pod(uid, phase), None)
        seen.append(pods.snapshot())
    pods._on_delete(a_pod("a", "Running"))
    seen.append(pods.snapshot())

    assert seen == [
        a_seen(),
        a_seen(bound="a"),
        a_seen(bound="ab"),
        a_seen(bound="ab", ended="b"),
        a_seen(bound="b", ended="ab"),
    ]


def test_while_nothing_changes_the_answer_is_the_same_one() -> None:
    api: Any = AsyncMock()
    pods = NodePods(api, node="n", resource="nvidia.com/gpu", key=None)
    pods._on_upsert(a_pod("a", "Running"), None)

    assert pods.snapshot() is pods.snapshot()


# --- a trimmed pod answers as the whole pod does


RESOURCE = "nvidia.com/gpu"
WHOLE: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"app": "x"},
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        "annotations": {
            MIRROR: "h",
            CONFIG_HASH: "static",
            PRELOAD.name: "false",
            "example.com/note": "long",
        },
    },
    "spec": {
        "nodeName": "n",
        "volumes": [{"name": "v"}],
        "initContainers": [{"name": "first", "image": "i"}],
        "containers": [
            {
                "name": "main",
                "image": "i",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                "resources": {"limits": {RESOURCE: "2"}, "requests": {"cpu": "1"}},
            }
        ],
    },
    "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled"}]},
}


def read_pods(pod: dict[str, Any]) -> list[object]:
    api: Any = AsyncMock()
    pods = NodePods(api, node="n", resource=RESOURCE, key=None)
    pods._on_upsert(pod, None)
    return [
        pods.snapshot(),
        pods.name_of("u"),
        pods.api_uid("static"),
        pods.literal_env("u", "main"),
        pods.literal_env("u", "first"),
        pods.waiting_for(2),
        pods.mig_devices(),
    ]


def test_what_is_kept_of_a_pod_answers_as_the_whole_pod() -> None:
    kept = kept_of(WHOLE)

    assert read_pods(kept) == read_pods(WHOLE)
    assert kept["metadata"].keys() == {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "annotations",
    }
    assert "volumes" not in kept["spec"]


def test_a_bookmark_is_kept_by_its_version() -> None:
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "9"}, "spec": {"containers": None}}

    assert kept_of(bookmark)["metadata"]["resourceVersion"] == "9"


# --- a pod's annotation about the library counts as a container's variable does


@pytest.mark.parametrize(
    ("annotations", "env", "found"),
    [
        ({PRELOAD.name: "false"}, [], {"CUDA_DISABLE_CONTROL": "true"}),
        ({PRELOAD.name: "true"}, [], {"CUDA_DISABLE_CONTROL": "false"}),
        (
            {PRELOAD.name: "false"},
            [{"name": "CUDA_DISABLE_CONTROL", "value": "false"}],
            {"CUDA_DISABLE_CONTROL": "false"},
        ),
        ({PRELOAD.name: "nonsense"}, [{"name": "A", "value": "b"}], {"A": "b"}),
        (None, [], {}),
    ],
)
def test_a_containers_variable_goes_before_its_pods_annotation(
    annotations: dict[str, str] | None, env: list[dict[str, str]], found: dict[str, str]
) -> None:
    pod: dict[str, Any] = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "main", "env": env}]},
    }

    assert literal_env(pod, "main") == found
