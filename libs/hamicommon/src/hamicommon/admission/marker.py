"""Mark pods that ask for cards with a resource that no node has, and with a label.

Cluster Autoscaler and Karpenter simulate with the nodes' resources only, so they would count a
shared card as a whole one, or a slot as a card. With the resource none of their nodes fits, and
they leave the pod to the placeholders that our scheduler creates (docs/scaling.md). kube-scheduler
leaves the resource to its extender, and kubelets drop a resource that their node does not list. The
label keeps placeholders off nodes with slices.
"""

from __future__ import annotations

from hamicommon.domain.requests import PodRequest
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.types import Json

SLICE = "hami.io/slice"
"""Name of that resource, and of the label."""


def mark(pod: Json, request: PodRequest) -> None:
    """Mark a pod that asks for cards, on the first container that asks."""
    containers = (container for _, container in containers_of(pod))
    asked = zip(containers, request.containers, strict=True)
    resources = next(container for container, asked in asked if asked.requests)["resources"]
    for part in ("limits", "requests"):
        resources[part] = {**(resources.get(part) or {}), SLICE: "1"}
    metadata = pod.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), SLICE: "true"}
