"""Nodes and pods in one line each."""

from typing import Any

from hamicommon.k8s.types import Json
from kubelocal.kubescheduler.cluster import KnownCluster, Node


def a_node(name: str = "n1", **fields: Any) -> Json:
    """A node with room for 4 cpu, 8 GiB and 10 pods unless `allocatable` is given."""
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10", **fields.pop("allocatable", {})}
    return {
        "metadata": {"name": name, "labels": fields.pop("labels", {})},
        "spec": fields,
        "status": {"allocatable": allocatable},
    }


def a_pod(name: str = "p1", **spec: Any) -> Json:
    """A pod of one container; `requests` are the container's."""
    requests = spec.pop("requests", {})
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    containers = [{"name": "main", "image": "x", "resources": {"requests": requests}}]
    return {"metadata": metadata, "spec": {"containers": containers, **spec}, "status": {}}


def known_node(item: Json) -> Node:
    """The node as the cluster keeps it."""
    cluster = KnownCluster()
    cluster.set_node(item)
    return cluster.nodes()[0]
