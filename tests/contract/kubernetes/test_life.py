"""The life of an object: binding, deletion, finalizers, and what admission adds to it.

The same cases on our server and on the real one.
"""

import orjson
from hamicommon.k8s.types import Json

from tests.contract.kubernetes.bodies import bind, config_map, pod
from tests.contract.kubernetes.servers import STRATEGIC_PATCH, Cluster
from tests.waiting import wait

GPU = "nvidia.com/gpu"


def test_a_pod_is_bound_once(cluster: Cluster) -> None:
    cluster.create("pods", pod())
    status = bind(cluster, "a")
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Success", 201)
    bound = cluster.get("pods", "a")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    assert bound["status"]["conditions"][0]["status"] == "True"
    body = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n2"}}
    answer = cluster.client.post(cluster.path("pods", "a/binding"), json=body)
    assert answer.status_code == 409
    assert 'pod a is already assigned to node "n1"' in answer.json()["message"]
    body["metadata"]["name"] = "nope"
    assert cluster.client.post(cluster.path("bindings"), json=body).status_code == 404


def test_a_bound_pod_waits_for_its_kubelet(cluster: Cluster) -> None:
    cluster.create("pods", pod())
    bind(cluster, "a")
    path = cluster.path("pods", "a")
    marked = cluster.ok(cluster.client.delete(path))
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert "deletionTimestamp" in marked["metadata"]
    shorter = cluster.ok(cluster.client.delete(path, params={"gracePeriodSeconds": "5"}))
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    longer = cluster.ok(cluster.client.delete(path, params={"gracePeriodSeconds": "60"}))
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 5
    cluster.ok(cluster.client.delete(path, params={"gracePeriodSeconds": "0"}))
    assert cluster.client.get(path).status_code == 404


def test_an_unbound_or_ended_pod_goes_at_once(cluster: Cluster) -> None:
    cluster.create("pods", pod("unbound"))
    cluster.ok(cluster.client.delete(cluster.path("pods", "unbound")))
    assert cluster.client.get(cluster.path("pods", "unbound")).status_code == 404
    cluster.create("pods", pod("ended"))
    bind(cluster, "ended")
    cluster.ok(
        cluster.patch(cluster.path("pods", "ended/status"), {"status": {"phase": "Succeeded"}})
    )
    cluster.ok(cluster.client.delete(cluster.path("pods", "ended")))
    assert cluster.client.get(cluster.path("pods", "ended")).status_code == 404


def test_preconditions_guard_a_deletion(cluster: Cluster) -> None:
    made = cluster.create("configmaps", config_map())
    path = cluster.path("configmaps", "c")

    def delete(conditions: Json) -> int:
        body = orjson.dumps({"preconditions": conditions})
        headers = {"content-type": "application/json"}
        answer = cluster.client.request("DELETE", path, content=body, headers=headers)
        return answer.status_code

    assert delete({"uid": "other"}) == 409
    assert delete({"resourceVersion": "1"}) == 409
    assert delete({"uid": made["metadata"]["uid"]}) == 200


def test_a_deletion_answers_with_a_status_or_the_object(cluster: Cluster) -> None:
    made = cluster.create("configmaps", config_map())
    status = cluster.ok(cluster.client.delete(cluster.path("configmaps", "c")))
    assert status["status"] == "Success"
    assert status["details"] == {
        "name": "c",
        "kind": "configmaps",
        "uid": made["metadata"]["uid"],
    }
    answer = cluster.client.delete(cluster.path("configmaps", "c"))
    assert answer.json()["reason"] == "NotFound"


def test_finalizers_hold_an_object_until_they_are_gone(cluster: Cluster) -> None:
    cluster.create("configmaps", config_map(finalizers=["a/b"]))
    path = cluster.path("configmaps", "c")
    marked = cluster.ok(cluster.client.delete(path))
    assert "deletionTimestamp" in marked["metadata"]
    again = cluster.ok(cluster.client.delete(path))
    assert again["metadata"]["resourceVersion"] == marked["metadata"]["resourceVersion"]
    cluster.ok(cluster.patch(path, {"metadata": {"finalizers": None}}))
    assert cluster.client.get(path).status_code == 404


def test_a_collection_is_deleted_by_selector(cluster: Cluster) -> None:
    for name, group in (("a", "x"), ("b", "x"), ("c", "y")):
        cluster.create("configmaps", config_map(name, labels={"group": group}))
    query = {"labelSelector": "group=x"}
    cluster.ok(cluster.client.delete(cluster.path("configmaps"), params=query))
    left = cluster.ok(
        cluster.client.get(cluster.path("configmaps"), params={"labelSelector": "group"})
    )
    assert [each["metadata"]["name"] for each in left["items"]] == ["c"]


def test_a_pod_gets_the_number_of_its_priority_class(cluster: Cluster) -> None:
    body = pod()
    body["spec"]["priorityClassName"] = "nope"
    answer = cluster.client.post(cluster.path("pods"), json=body)
    assert answer.status_code == 403
    assert "no PriorityClass with name nope was found" in answer.json()["message"]
    name = f"p-{cluster.namespace}"
    klass = {"metadata": {"name": name}, "value": 77}
    cluster.ok(cluster.client.post("/apis/scheduling.k8s.io/v1/priorityclasses", json=klass))
    body["spec"]["priorityClassName"] = name

    def is_known() -> bool:
        return cluster.client.post(cluster.path("pods"), json=body).status_code in (201, 409)

    wait(is_known, what="the class is known to admission")
    assert cluster.get("pods", "a")["spec"]["priority"] == 77


def test_a_workload_counts_its_generations(cluster: Cluster) -> None:
    labels = {"app": "d"}
    deployment = {
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod()["spec"]},
        },
    }
    made = cluster.create("deployments", deployment, api="/apis/apps/v1")
    assert made["metadata"]["generation"] == 1
    assert made["spec"]["replicas"] == 1
    path = cluster.path("deployments", "d", api="/apis/apps/v1")
    assert (
        cluster.ok(cluster.patch(path, {"metadata": {"labels": {"x": "y"}}}))["metadata"][
            "generation"
        ]
        == 1
    )
    scaled = cluster.ok(cluster.patch(path, {"spec": {"replicas": 3}}))
    assert scaled["metadata"]["generation"] == 2
    broken = deployment | {"metadata": {"name": "e"}}
    broken["spec"] = {**deployment["spec"], "selector": {"matchLabels": {"app": "other"}}}
    answer = cluster.client.post(cluster.path("deployments", api="/apis/apps/v1"), json=broken)
    assert "`selector` does not match template `labels`" in answer.json()["message"]


def test_nodes_keep_the_status_of_their_registration(cluster: Cluster) -> None:
    name = f"node-{cluster.namespace}"
    node = {"metadata": {"name": name}, "status": {"capacity": {"cpu": "4", GPU: "10"}}}
    made = cluster.ok(cluster.client.post("/api/v1/nodes", json=node))
    assert made["status"]["allocatable"] == {"cpu": "4", GPU: "10"}
    path = f"/api/v1/nodes/{name}"
    cluster.ok(cluster.patch(path, {"metadata": {"annotations": {"a/b": "c"}}}))
    changed = cluster.ok(cluster.patch(path, {"status": {"capacity": {"cpu": "5"}}}))
    assert changed["status"]["capacity"]["cpu"] == "4"
    taints = [{"key": "k", "effect": "NoSchedule"}]
    cluster.ok(cluster.patch(path, {"spec": {"taints": taints}}, STRATEGIC_PATCH))
    cluster.ok(cluster.client.delete(path))
