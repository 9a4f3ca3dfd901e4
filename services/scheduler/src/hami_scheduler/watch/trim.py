"""Reduce objects of the cluster to the used fields, a tenth of their size.

The pod and node watches hold every object of the cluster in memory. Managed fields, volumes,
environment, probes and image lists are most of an object, and nothing here reads them.
"""

from __future__ import annotations

from hamicommon.k8s.types import Json

from hami_scheduler.ledger.state_machine import STATUSES

_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"),
    *("annotations", "labels", "ownerReferences"),
)
_SPEC = (
    *("nodeName", "schedulerName", "priority", "preemptionPolicy", "schedulingGates"),
    *("schedulingGroup", "serviceAccountName", "resourceClaims", "nodeSelector", "tolerations"),
    "terminationGracePeriodSeconds",
)
_STATUS = ("phase", "reason", "message", "nominatedNodeName", "resourceClaimStatuses")
_CONTAINERS = ("initContainers", "containers")
_CONTAINER = ("name", "resources", "restartPolicy")
_NODE_STATUS = ("capacity", "allocatable", "conditions")
# kubectl keeps a second copy of the whole object here.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def trimmed_pod(pod: Json) -> Json:
    """Return the used fields of a pod."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    kept_spec = _only(spec, _SPEC)
    for key in _CONTAINERS:
        if containers := spec.get(key):
            kept_spec[key] = [_only(container, _CONTAINER) for container in containers]
    kept_status = _only(status, _STATUS)
    if conditions := [c for c in status.get("conditions") or () if c["type"] == "PodScheduled"]:
        kept_status["conditions"] = conditions
    for key in STATUSES:
        if statuses := status.get(key):
            kept_status[key] = [_only(item, ("name", "containerID")) for item in statuses]
    return {"metadata": _metadata(pod), "spec": kept_spec, "status": kept_status}


def trimmed_node(node: Json) -> Json:
    """Return the used fields of a node."""
    return {
        "metadata": _metadata(node),
        "spec": _only(node.get("spec") or {}, ("unschedulable", "taints")),
        "status": _only(node.get("status") or {}, _NODE_STATUS),
    }


def _metadata(item: Json) -> Json:
    kept = _only(item["metadata"], _METADATA)
    if _LAST_APPLIED in kept.get("annotations", ()):
        kept["annotations"] = {k: v for k, v in kept["annotations"].items() if k != _LAST_APPLIED}
    return kept


def _only(item: Json, keys: tuple[str, ...]) -> Json:
    return {key: item[key] for key in keys if key in item}
