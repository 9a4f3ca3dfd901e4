"""A trimmed pod answers as the whole pod does."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

from hami_node_agent.adapters.kubernetes.pod_fields import CONFIG_HASH, MIRROR, kept_of
from hami_node_agent.adapters.kubernetes.pods import NodePods
from hamicommon.k8s.pod_annotations import PRELOAD

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


def shown(pod: dict[str, Any]) -> list[object]:
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

    assert shown(kept) == shown(WHOLE)
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
