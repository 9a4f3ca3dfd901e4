"""The requests: reviews of replicas of 64 workloads, and the same bodies to the bare endpoint."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable


def review(workload: int, replica: int, value: str = "x" * 20) -> bytes:
    """A replica as an API server sends it, of a Deployment with a slice.

    Replicas differ in the uid of the review and in the volume that the API server mounts.
    """
    memory_mib = str(4096 + workload)
    resources = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": memory_mib,
        "nvidia.com/gpucores": "30",
    }
    volume = f"kube-api-access-{replica:05}"
    mount = {
        "name": volume,
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    container = {
        "name": "main",
        "image": "registry.example.com/team/inference:1.2.3",
        "command": ["python", "-m", "serve", "--port", "8080"],
        "env": [{"name": f"SETTING_{n}", "value": value} for n in range(8)],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": {**resources, "cpu": "2"}, "requests": {**resources, "cpu": "2"}},
        "volumeMounts": [mount],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"inference-{workload:02}-7d4b9c6f5-",
            "namespace": "team",
            "labels": {"app": "inference", "pod-template-hash": "7d4b9c6f5"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "inference", "uid": "u"}
            ],
        },
        "spec": {
            "containers": [container],
            "volumes": [{"name": volume, "projected": {"sources": []}}],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        },
    }
    request = {
        "uid": f"review-{workload:02}-{replica:05}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": pod,
        "dryRun": False,
    }
    document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(document).encode()


def posted(body: bytes, path: str) -> bytes:
    """The whole HTTP request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


NextRequest = Callable[[], bytes]
WORKLOADS, REPLICAS = 64, 16
_TURN, _VALUE = itertools.count(), itertools.count()
_BODIES = [review(w, r) for r in range(REPLICAS) for w in range(WORKLOADS)]
_REVIEWS = [posted(body, "/webhook") for body in _BODIES]
_BARE = [posted(body, "/bare") for body in _BODIES]
_MARK = "y" * 20
_UNSEEN = posted(review(0, 0, _MARK), "/webhook")


def replica() -> bytes:
    """A review of a replica of some workload."""
    return _REVIEWS[next(_TURN) % len(_REVIEWS)]


def bare() -> bytes:
    """The same to the bare endpoint."""
    return _BARE[next(_TURN) % len(_BARE)]


def unseen() -> bytes:
    """A review of a pod that is like none before it: its environment is new."""
    return _UNSEEN.replace(_MARK.encode(), b"%020d" % next(_VALUE))
