"""The objects that the cases on the Kubernetes API create."""

from hamicommon.k8s.types import Json

from tests.contract.kubernetes.servers import Cluster


def pod(name: str = "a", **resources: Json) -> Json:
    container: Json = {"name": "main", "image": "busybox:1"}
    if resources:
        container["resources"] = resources
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


def bind(cluster: Cluster, name: str, node: str = "n1") -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    return cluster.ok(cluster.client.post(cluster.path("pods", f"{name}/binding"), json=body))


def config_map(name: str = "c", **metadata: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": {"a": "1"},
    }
