"""The bench's nodes and pods as an API server stores them, with all that weighs in a watch cache.

Fields that the scheduler does not read (managed fields, images, conditions) are there on purpose:
what a replica holds of them is part of its resident memory.
"""

from __future__ import annotations

import uuid

from hamicommon.domain.ids import NodeName
from hamicommon.k8s.annotations import node_label
from hamicommon.k8s.types import Json
from kubelocal.apiserver.kinds.defaults import default_pod_spec, tolerate_lost_nodes

CARDS = 8
MEMORY_MIB = 81_920
NOW = "2026-01-01T00:00:00Z"


def node_name(number: int) -> str:
    """Names as long as usual ones."""
    return f"gpu-node-{number:04d}.bench"


def card_uuid(node: str, index: int) -> str:
    """Return a uuid as long as the driver's."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{index}')}"


def node_object(name: str) -> Json:
    """A node of 8 cards, with the twenty images that a kubelet reports."""
    amounts = {"cpu": "128", "memory": "1056Gi", "pods": "250", "nvidia.com/gpu": str(10 * CARDS)}
    return {
        "metadata": {
            **_metadata(name),
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "gpu": "on",
            },
            "managedFields": [_managed_fields_entry("kubelet", "f:status")],
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [_condition("Ready", "True", reason="KubeletReady")],
            "images": [
                {
                    "names": [f"registry.bench/team/app-{n}@sha256:{n:064x}"],
                    "sizeBytes": 10**9 + n,
                }
                for n in range(20)
            ],
        },
    }


def pod_object(name: str, *, memory_mib: int, core_percent: int, node: str | None = None) -> Json:
    """A pod with one slice; with `node` it runs there."""
    limits = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(memory_mib),
        "nvidia.com/gpucores": str(core_percent),
    }
    mount = "/var/run/secrets/kubernetes.io/serviceaccount"
    container = {
        "name": "main",
        "image": "registry.bench/team/app:1",
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": limits, "requests": limits},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": "kube-api-access", "readOnly": True, "mountPath": mount}],
    }
    pod: Json = {
        "metadata": {
            **_metadata(name),
            "namespace": "default",
            "labels": {"app": "bench", "pod-template-hash": "5d4f8c7b9d"},
            "managedFields": [
                _managed_fields_entry("kubectl", "f:spec"),
                _managed_fields_entry("kubelet", "f:status"),
            ],
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "containers": [container],
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0,
            "restartPolicy": "Always",
            "securityContext": {},
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "kube-api-access", "projected": {"defaultMode": 420}}],
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }
    return pod if node is None else _running(pod, node)


def _running(pod: Json, node: str) -> Json:
    pod["spec"]["nodeName"] = node
    # It lies in the store as the API server would have put it there.
    default_pod_spec(pod["spec"])
    tolerate_lost_nodes(pod["spec"])
    pod["metadata"]["labels"].update(node_label(NodeName(node)))
    pod["metadata"]["annotations"] = {
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-devices-allocated": f"{card_uuid(node, 0)},NVIDIA,4096,10:;",
    }
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    pod["status"] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "startTime": NOW,
        "conditions": [_condition(kind, "True") for kind in kinds],
        "containerStatuses": [
            {
                "name": "main",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": NOW}},
                "containerID": f"containerd://{uuid.uuid4().hex * 2}",
            }
        ],
    }
    return pod


def _metadata(name: str) -> Json:
    return {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": NOW}


def _condition(kind: str, status: str, **more: str) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": NOW, **more}


def _managed_fields_entry(manager: str, part: str) -> Json:
    keys = ("f:containers", "f:conditions", "f:restartPolicy", "f:securityContext", "f:volumes")
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": NOW,
        "fieldsType": "FieldsV1",
        "fieldsV1": {part: {key: {".": {}, 'k:{"name":"main"}': {".": {}}} for key in keys}},
    }
