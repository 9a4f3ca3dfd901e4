"""Trimmed objects of the cluster keep all fields that decisions use."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hami_scheduler.ledger.state_machine import facts_of
from hami_scheduler.placement.waiting_pods import scheduled_verdict
from hami_scheduler.watch.trim import trimmed_node, trimmed_pod
from hamicommon import device_config
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from bench.filter.objects import node_object, pod_object

VENDORS = Vendors.from_config(device_config.load(None))


def a_pod(**changes: Any) -> dict[str, Any]:
    pod = pod_object("p", memory_mib=1024, core_percent=10)
    pod["metadata"] |= {"resourceVersion": "7", **changes.pop("metadata", {})}
    pod["spec"] |= changes.pop("spec", {})
    pod["status"] |= changes.pop("status", {})
    return pod


SIDECAR = {"name": "s", "restartPolicy": "Always", "image": "i", "resources": {}, "env": [{}]}
REFUSED = {
    "type": "PodScheduled",
    "status": "False",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "reason": "Unschedulable",
    "message": "0/3 nodes",
}
PODS = {
    "waiting": a_pod(),
    "refused": a_pod(status={"conditions": [REFUSED, {"type": "Ready", "status": "False"}]}),
    "running": pod_object("p", memory_mib=1024, core_percent=10, node="n"),
    "refused by its kubelet": a_pod(
        status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no endpoint"}
    ),
    "deleting": a_pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    "with a sidecar": a_pod(spec={"initContainers": [SIDECAR]}),
    "with annotations": a_pod(metadata={"annotations": {"nvidia.com/use-gputype": "A100"}}),
    "that preempts nobody": a_pod(spec={"priority": 7, "preemptionPolicy": "Never"}),
    "nominated": a_pod(status={"nominatedNodeName": "n"}),
    "empty": {"metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "1"}},
}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_a_trimmed_pod_reads_like_the_whole_one(pod: dict[str, Any]) -> None:
    kept = trimmed_pod(pod)

    assert pod_request(kept, VENDORS) == pod_request(pod, VENDORS)
    assert facts_of(kept) == facts_of(pod)
    assert scheduled_verdict(kept) == scheduled_verdict(pod)
    for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "annotations"):
        assert kept["metadata"].get(key) == pod["metadata"].get(key)
    for key in ("schedulerName", "priority", "preemptionPolicy", "terminationGracePeriodSeconds"):
        assert kept["spec"].get(key) == pod.get("spec", {}).get(key)
    nominated = pod.get("status", {}).get("nominatedNodeName")
    assert kept["status"].get("nominatedNodeName") == nominated


def test_a_trimmed_pod_is_small_and_the_whole_one_unchanged() -> None:
    pod = PODS["running"]
    before = orjson.dumps(pod)

    assert len(orjson.dumps(trimmed_pod(pod))) < len(before) / 2
    assert orjson.dumps(pod) == before


def test_what_kubectl_applied_last_is_left_out_and_other_annotations_stay() -> None:
    key = "kubectl.kubernetes.io/last-applied-configuration"
    pod = a_pod(metadata={"annotations": {key: "{}", "a": "b"}})

    assert trimmed_pod(pod)["metadata"]["annotations"] == {"a": "b"}


def test_of_a_node_capacity_and_annotations_stay_and_images_go() -> None:
    node = node_object("n")
    node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": "[]"}

    kept = trimmed_node(node)

    assert kept["status"]["capacity"] == node["status"]["capacity"]
    assert kept["metadata"]["annotations"] == node["metadata"]["annotations"]
    assert "images" not in kept["status"]


def test_of_a_pod_with_claims_their_names_stay() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    made = [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]
    pod = a_pod(spec={"resourceClaims": claims}, status={"resourceClaimStatuses": made})

    kept = trimmed_pod(pod)

    assert kept["spec"]["resourceClaims"] == claims
    assert kept["status"]["resourceClaimStatuses"] == made
