"""Reading objects: selectors, pages, watches, tables, discovery, tokens.

The same cases on our server and on the real one.
"""

import threading

import orjson
import pytest
from hamicommon.k8s.types import Json

from tests.contract.kubernetes.bodies import bind, config_map, pod
from tests.contract.kubernetes.servers import (
    Cluster,
)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=x", ["a", "b"]),
        ("app==x,tier!=back", ["a"]),
        ("app in (x, y)", ["a", "b", "c"]),
        ("app notin (x)", ["c", "d"]),
        ("tier", ["b"]),
        ("!app", ["d"]),
        ("app=x,tier", ["b"]),
    ],
)
def test_label_selectors(cluster: Cluster, selector: str, names: list[str]) -> None:
    labels: dict[str, Json] = {
        "a": {"app": "x"},
        "b": {"app": "x", "tier": "back"},
        "c": {"app": "y"},
        "d": {},
    }
    for name, each in labels.items():
        cluster.create("pods", pod(name) | {"metadata": {"name": name, "labels": each}})
    answer = cluster.client.get(cluster.path("pods"), params={"labelSelector": selector})
    assert [each["metadata"]["name"] for each in cluster.ok(answer)["items"]] == names


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=b", ["b"]),
        ("spec.nodeName=n1", ["a"]),
        ("spec.nodeName=", ["b"]),
        ("spec.nodeName!=n1", ["b"]),
        ("status.phase=Pending,spec.schedulerName=default-scheduler", ["a", "b"]),
    ],
)
def test_field_selectors(cluster: Cluster, selector: str, names: list[str]) -> None:
    for name in ("a", "b"):
        cluster.create("pods", pod(name))
    bind(cluster, "a")
    answer = cluster.client.get(cluster.path("pods"), params={"fieldSelector": selector})
    assert [each["metadata"]["name"] for each in cluster.ok(answer)["items"]] == names


def test_unknown_field_labels_and_broken_selectors_are_bad_requests(cluster: Cluster) -> None:
    path = cluster.path("pods")
    status = cluster.client.get(path, params={"fieldSelector": "foo=bar"}).json()
    assert (status["code"], status["message"]) == (400, "field label not supported: foo")
    status = cluster.client.get(path, params={"labelSelector": "a b c"}).json()
    assert (status["code"], status["reason"]) == (400, "BadRequest")


def test_list_items_carry_no_kind_and_pages_join_up(cluster: Cluster) -> None:
    for name in "abcde":
        cluster.create("configmaps", config_map(name, labels={"page": "1"}))
    query = {"limit": "2", "labelSelector": "page"}
    names: list[str] = []
    while True:
        page = cluster.ok(cluster.client.get(cluster.path("configmaps"), params=query))
        assert page["kind"] == "ConfigMapList"
        assert all("kind" not in each for each in page["items"])
        names += [each["metadata"]["name"] for each in page["items"]]
        if not page["metadata"].get("continue"):
            break
        query["continue"] = page["metadata"]["continue"]
    assert names == list("abcde")


def test_a_watch_without_version_begins_with_what_exists(cluster: Cluster) -> None:
    cluster.create("pods", pod("a"))
    events = cluster.watch("pods")
    assert [(each["type"], each["object"]["metadata"]["name"]) for each in events] == [
        ("ADDED", "a")
    ]
    assert events[0]["object"]["kind"] == "Pod"


def test_a_watch_reports_every_change_after_its_version(cluster: Cluster) -> None:
    start = cluster.ok(cluster.client.get(cluster.path("configmaps")))["metadata"]
    cluster.create("configmaps", config_map("w"))
    cluster.ok(cluster.patch(cluster.path("configmaps", "w"), {"data": {"b": "2"}}))
    cluster.ok(cluster.client.delete(cluster.path("configmaps", "w")))
    events = cluster.watch(
        "configmaps", resourceVersion=start["resourceVersion"], fieldSelector="metadata.name=w"
    )
    assert [each["type"] for each in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in events]
    assert versions == sorted(set(versions))
    assert events[2]["object"]["data"] == {"a": "1", "b": "2"}


def test_leaving_a_selection_is_a_deletion_to_its_watcher(cluster: Cluster) -> None:
    start = cluster.ok(cluster.client.get(cluster.path("pods")))["metadata"]
    cluster.create("pods", pod("a"))
    bind(cluster, "a")
    events = cluster.watch(
        "pods", resourceVersion=start["resourceVersion"], fieldSelector="spec.nodeName="
    )
    assert [each["type"] for each in events] == ["ADDED", "DELETED"]
    events = cluster.watch(
        "pods", resourceVersion=start["resourceVersion"], fieldSelector="spec.nodeName=n1"
    )
    assert [each["type"] for each in events] == ["ADDED"]


def test_a_watch_hears_of_a_change_while_it_is_open(cluster: Cluster) -> None:
    start = cluster.ok(cluster.client.get(cluster.path("pods")))["metadata"]["resourceVersion"]
    query = {"watch": "1", "resourceVersion": start, "timeoutSeconds": "20"}
    with cluster.client.stream("GET", cluster.path("pods"), params=query) as answer:
        made = threading.Timer(0.2, lambda: cluster.create("pods", pod("late")))
        made.start()
        line = next(answer.iter_lines())
        made.join()
    assert orjson.loads(line)["object"]["metadata"]["name"] == "late"


def test_bookmarks_come_before_the_end_of_a_watch(cluster: Cluster) -> None:
    start = cluster.ok(cluster.client.get(cluster.path("pods")))["metadata"]["resourceVersion"]
    events = cluster.watch("pods", 4, resourceVersion=start, allowWatchBookmarks="true")
    marks = [each for each in events if each["type"] == "BOOKMARK"]
    # Bookmarks are never promised: kube-apiserver 1.20 sends none in so short a watch.
    assert marks or cluster.kind == "real"
    for mark in marks:
        assert int(mark["object"]["metadata"]["resourceVersion"]) >= int(start)
        assert mark["object"]["kind"] == "Pod"


def test_versions_that_are_no_numbers_or_not_yet_reached(cluster: Cluster) -> None:
    path = cluster.path("pods")
    assert cluster.client.get(path, params={"resourceVersion": "abc"}).status_code >= 400
    answer = cluster.client.get(path, params={"resourceVersion": "99999999"})
    assert answer.status_code == 504
    assert "Too large resource version" in answer.json()["message"]


def test_tables_have_the_columns_of_kubectl(cluster: Cluster) -> None:
    cluster.create("pods", pod())
    headers = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    table = cluster.ok(cluster.client.get(cluster.path("pods"), headers=headers))
    assert table["kind"] == "Table"
    names = [each["name"] for each in table["columnDefinitions"]]
    assert names[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
    cells = table["rows"][0]["cells"]
    assert cells[:3] == ["a", "0/1", "Pending"]
    assert int(cells[3]) == 0
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_without_a_known_token_only_health_and_version_are_open(cluster: Cluster) -> None:
    for headers in ({"authorization": ""}, {"authorization": "Bearer wrong"}):
        answer = cluster.client.get("/api/v1/pods", headers=headers)
        assert answer.status_code in (401, 403)  # the real one may know an anonymous user
    for path in ("/healthz", "/readyz", "/livez"):
        assert cluster.client.get(path, headers={"authorization": ""}).status_code == 200
    assert cluster.client.get("/version").json()["major"] == "1"


def test_discovery_names_what_we_use(cluster: Cluster) -> None:
    groups = {each["name"] for each in cluster.ok(cluster.client.get("/apis"))["groups"]}
    assert {"apps", "batch", "coordination.k8s.io", "scheduling.k8s.io"} <= groups
    core = cluster.ok(cluster.client.get("/api/v1"))["resources"]
    kinds = {each["name"]: each["kind"] for each in core}
    assert kinds["pods"] == kinds["pods/status"] == "Pod"
    assert kinds["pods/binding"] == "Binding"
    verbs = next(each["verbs"] for each in core if each["name"] == "pods")
    assert {"create", "delete", "deletecollection", "get", "list", "patch", "watch"} <= set(verbs)


def test_forbidden_namespaces_and_methods(cluster: Cluster) -> None:
    answer = cluster.client.delete("/api/v1/namespaces/default")
    assert answer.status_code == 403
    assert "this namespace may not be deleted" in answer.json()["message"]
    assert cluster.client.delete(cluster.path("pods", "a/status")).status_code == 405
