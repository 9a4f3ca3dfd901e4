"""The Node object and its Lease, as a kubelet writes them; `status_updates.py` sends them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_status
from kubelocal.kubelet.devices.types import DeviceCounts

# kubectl and schedulers parse it as a semantic version: behaviour of 1.20, made by hamictl.
KUBELET_VERSION = "v1.20.2+hamictl"
MOUNTS_ANNOTATION = "hamictl.io/mounts"
ROOT_ANNOTATION = "hamictl.io/kubelet-root"
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
# The kubelet's nodeLeaseDurationSeconds.
LEASE_DURATION_S = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """What does not change while the kubelet runs; amounts are Kubernetes quantities."""

    name: str
    cpu: str
    memory: str
    pods: int
    mounts: str
    root: str


def labels(identity: NodeIdentity) -> dict[str, str]:
    """Labels that every kubelet sets on its Node."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": identity.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": machine,
    }


def own_annotations(identity: NodeIdentity) -> dict[str, str]:
    """What a reader of the simulation wants to know of the node."""
    return {MOUNTS_ANNOTATION: identity.mounts, ROOT_ANNOTATION: identity.root}


def metadata(identity: NodeIdentity) -> Json:
    """Metadata of our own; other writers' labels and annotations are left alone."""
    return {
        "name": identity.name,
        "labels": labels(identity),
        "annotations": own_annotations(identity),
    }


def resources(identity: NodeIdentity) -> dict[str, str]:
    """Capacity of the machine, which is all allocatable."""
    return {
        "cpu": identity.cpu,
        "memory": identity.memory,
        "pods": str(identity.pods),
        "ephemeral-storage": "100Gi",
    }


def allocatable(identity: NodeIdentity, devices: Mapping[str, DeviceCounts]) -> dict[str, str]:
    """What pods may ask for at this moment."""
    return resources(identity) | {r: str(c.allocatable) for r, c in devices.items()}


def status(
    identity: NodeIdentity, devices: Mapping[str, DeviceCounts], *, ready_since: datetime
) -> Json:
    """The status without heartbeat times, so that two of them compare."""
    return {
        "capacity": resources(identity) | {r: str(c.capacity) for r, c in devices.items()},
        "allocatable": allocatable(identity, devices),
        "conditions": [
            _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", ready_since),
            _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", ready_since),
            _condition("PIDPressure", "False", "KubeletHasSufficientPID", ready_since),
            _condition("Ready", "True", "KubeletReady", ready_since),
        ],
        "addresses": [
            {"type": "InternalIP", "address": pod_status.HOST_IP},
            {"type": "Hostname", "address": identity.name},
        ],
        "nodeInfo": {
            "machineID": identity.name,
            "systemUUID": identity.name,
            "bootID": identity.name,
            "kernelVersion": platform.release(),
            "osImage": "local processes",
            "containerRuntimeVersion": "hami-launcher://1",
            "kubeletVersion": KUBELET_VERSION,
            "kubeProxyVersion": KUBELET_VERSION,
            "operatingSystem": "linux",
            "architecture": labels(identity)["kubernetes.io/arch"],
        },
    }


def _condition(kind: str, verdict: str, reason: str, since: datetime) -> Json:
    return {
        "type": kind,
        "status": verdict,
        "reason": reason,
        "message": f"{kind} as this simulated kubelet sees it",
        "lastTransitionTime": pod_status.stamp(since),
    }


def with_heartbeat(state: Json, now: datetime) -> Json:
    """The status with the time at which it was reported."""
    beats = [{**c, "lastHeartbeatTime": pod_status.stamp(now)} for c in state["conditions"]]
    return {**state, "conditions": beats}


def lease(identity: NodeIdentity, owner_uid: str, now: datetime) -> Json:
    """The Lease by which others see that this kubelet lives."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": identity.name,
            "namespace": "kube-node-lease",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": identity.name, "uid": owner_uid}
            ],
        },
        "spec": {
            "holderIdentity": identity.name,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }
