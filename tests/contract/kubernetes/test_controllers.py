"""The duties of kube-controller-manager that our API server does itself."""

from collections.abc import Iterator

import pytest
from hamicommon.k8s.types import Json

from tests.contract.kubernetes.bodies import bind, config_map, pod
from tests.contract.kubernetes.servers import Cluster, emulated, fresh_namespace
from tests.waiting import wait


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with emulated(tmp_path_factory.mktemp("kubernetes"), "--lost-node-s", "0.5") as cluster:
        yield cluster


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    return fresh_namespace(server)


def gone(cluster: Cluster, plural: str, name: str) -> None:
    path = cluster.path(plural, name)
    wait(lambda: cluster.client.get(path).status_code == 404, what=f"{plural}/{name} is gone")


def owner_in(cluster: Cluster) -> Json:
    """A new ConfigMap, as its dependents refer to it."""
    made = cluster.create("configmaps", config_map("owner"))
    uid = made["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}


def test_dependents_go_with_their_owner(cluster: Cluster) -> None:
    owner = owner_in(cluster)
    foreign = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "w1"}
    cluster.create(
        "pods", pod("owned") | {"metadata": {"name": "owned", "ownerReferences": [owner]}}
    )
    cluster.create("configmaps", config_map("kept", ownerReferences=[foreign]))
    cluster.ok(cluster.client.delete(cluster.path("configmaps", "owner")))
    gone(cluster, "pods", "owned")
    assert cluster.get("configmaps", "kept")


def test_a_deleted_namespace_is_emptied_and_removed(cluster: Cluster) -> None:
    cluster.create("configmaps", config_map())
    path = f"/api/v1/namespaces/{cluster.namespace}"
    marked = cluster.ok(cluster.client.delete(path))
    assert marked["status"]["phase"] == "Terminating"
    answer = cluster.client.post(cluster.path("configmaps"), json=config_map("late"))
    assert answer.status_code in (403, 404)
    wait(lambda: cluster.client.get(path).status_code == 404, what="the namespace is gone")
    assert cluster.ok(cluster.client.get(cluster.path("configmaps")))["items"] == []


def test_pods_of_a_node_that_is_gone_are_removed(cluster: Cluster) -> None:
    name = f"node-{cluster.namespace}"
    cluster.ok(cluster.client.post("/api/v1/nodes", json={"metadata": {"name": name}}))
    cluster.create("pods", pod())
    bind(cluster, "a", name)
    cluster.ok(cluster.client.delete(f"/api/v1/nodes/{name}"))
    gone(cluster, "pods", "a")
