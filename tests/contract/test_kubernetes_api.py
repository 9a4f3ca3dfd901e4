"""The Kubernetes API as clients see it: the same cases on our server and on the real one."""

import threading
import uuid
from collections.abc import Iterator

import orjson
import pytest

from tests.contract.kubernetes_servers import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Cluster,
    Json,
    emulated_or_real,
    fresh_namespace,
    poll,
)

GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module", params=["emulator", "real"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with emulated_or_real(request, tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    return fresh_namespace(server)


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


def test_a_new_pod_has_an_identity_defaults_and_is_pending(cluster: Cluster) -> None:
    made = cluster.create("pods", pod(limits={GPU: 1, "cpu": "0.5", "memory": "1024Mi"}))
    meta, spec = made["metadata"], made["spec"]
    assert len(meta["uid"]) == 36
    assert int(meta["resourceVersion"]) > 0
    assert meta["creationTimestamp"].endswith("Z")
    assert meta["namespace"] == cluster.namespace
    assert made["status"] == {"phase": "Pending", "qosClass": "Guaranteed"}
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec["priority"] == 0
    assert {each["key"] for each in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    container = spec["containers"][0]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["terminationMessagePath"] == "/dev/termination-log"
    amounts = {GPU: "1", "cpu": "500m", "memory": "1Gi"}
    assert container["resources"] == {"limits": amounts, "requests": amounts}


def test_generate_name_makes_a_name(cluster: Cluster) -> None:
    made = cluster.create("configmaps", {"metadata": {"generateName": "gen-"}})
    name = made["metadata"]["name"]
    assert name.startswith("gen-")
    assert len(name) == len("gen-") + 5


def test_the_same_name_twice_is_refused(cluster: Cluster) -> None:
    cluster.create("pods", pod())
    answer = cluster.client.post(cluster.path("pods"), json=pod())
    assert answer.status_code == 409
    assert answer.json()["reason"] == "AlreadyExists"
    assert answer.json()["message"] == 'pods "a" already exists'
    assert answer.json()["details"] == {"name": "a", "kind": "pods"}


def test_unknown_objects_paths_and_namespaces_are_not_found(cluster: Cluster) -> None:
    missing = cluster.client.get(cluster.path("pods", "nope")).json()
    assert (missing["code"], missing["reason"]) == (404, "NotFound")
    assert missing["message"] == 'pods "nope" not found'
    path = cluster.client.get("/api/v1/foos").json()
    assert path["message"] == "the server could not find the requested resource"
    elsewhere = cluster.client.post("/api/v1/namespaces/nope/pods", json=pod()).json()
    assert elsewhere["message"] == 'namespaces "nope" not found'
    grouped = cluster.client.get(cluster.path("jobs", "j", api="/apis/batch/v1")).json()
    assert grouped["message"] == 'jobs.batch "j" not found'


@pytest.mark.parametrize(
    ("resources", "causes"),
    [
        pytest.param(
            {"limits": {GPU: "-1"}},
            {
                f"spec.containers[0].resources.limits[{GPU}]": "greater than or equal to 0",
                f"spec.containers[0].resources.requests[{GPU}]": "greater than or equal to 0",
            },
            id="negative",
        ),
        pytest.param(
            {"limits": {GPU: "0.5"}},
            {
                f"spec.containers[0].resources.limits[{GPU}]": "must be an integer",
                f"spec.containers[0].resources.requests[{GPU}]": "must be an integer",
            },
            id="fraction of a card",
        ),
        pytest.param(
            {"requests": {GPU: "1"}},
            {"spec.containers[0].resources.limits": "Limit must be set"},
            id="request without limit",
        ),
        pytest.param(
            {"requests": {GPU: "1"}, "limits": {GPU: "2"}},
            {"spec.containers[0].resources.requests": "must be equal to nvidia.com/gpu limit"},
            id="request is not limit",
        ),
        pytest.param(
            {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
            {"spec.containers[0].resources.requests": "must be less than or equal to cpu limit"},
            id="more cpu than the limit",
        ),
        pytest.param(
            {"limits": {"gpu": "1"}},
            {"spec.containers[0].resources.limits[gpu]": "standard resource"},
            id="name without domain",
        ),
    ],
)
def test_impossible_amounts_are_invalid(
    cluster: Cluster, resources: Json, causes: dict[str, str]
) -> None:
    answer = cluster.client.post(cluster.path("pods"), json=pod(**resources))
    assert answer.status_code == 422
    status = answer.json()
    assert status["reason"] == "Invalid"
    assert status["message"].startswith('Pod "a" is invalid: ')
    found = {each["field"]: each["message"] for each in status["details"]["causes"]}
    for field, text in causes.items():
        assert text in found[field]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"containers": []}, "spec.containers", id="no container"),
        pytest.param({"containers": [{"name": "x"}]}, "spec.containers[0].image", id="no image"),
        pytest.param(
            {"containers": [{"name": "x", "image": "i"}, {"name": "x", "image": "i"}]},
            "spec.containers[1].name",
            id="two of one name",
        ),
        pytest.param({"restartPolicy": "Perhaps"}, "spec.restartPolicy", id="policy"),
        pytest.param(
            {
                "containers": [
                    {
                        "name": "x",
                        "image": "i",
                        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    }
                ]
            },
            "spec.containers[0].volumeMounts[0].name",
            id="mount without volume",
        ),
    ],
)
def test_a_broken_pod_names_the_field(cluster: Cluster, change: Json, field: str) -> None:
    body = pod()
    body["spec"] |= change
    status = cluster.client.post(cluster.path("pods"), json=body).json()
    assert status["code"] == 422
    assert [each["field"] for each in status["details"]["causes"]] == [field]


def test_labels_and_names_have_their_grammar(cluster: Cluster) -> None:
    long = config_map(labels={"x": "v" * 64})
    status = cluster.client.post(cluster.path("configmaps"), json=long).json()
    assert "must be no more than 63 characters" in status["message"]
    status = cluster.client.post(cluster.path("configmaps"), json=config_map("Bad_name")).json()
    assert status["message"].startswith(
        'ConfigMap "Bad_name" is invalid: metadata.name: Invalid value: "Bad_name": '
        "a lowercase RFC 1123 subdomain must consist of"
    )


@pytest.mark.parametrize(
    ("content", "media", "code", "text"),
    [
        (b"{nope", "application/json", 400, "couldn't get version/kind"),
        (b"{}", "text/foo", 415, "the body of the request was in an unknown format"),
        (b'{"spec":{"nodeName":3}}', "application/json", 400, "cannot be handled as a Pod"),
        (
            b'{"spec":{"containers":[{"resources":{"limits":{"cpu":"abc"}}}]}}',
            "application/json",
            400,
            "quantities must match the regular expression",
        ),
        (b'{"kind":"Node"}', "application/json", 400, ""),
        (b'{"metadata":{"name":"x","namespace":"other"}}', "application/json", 400, "namespace"),
        (b'{"metadata":{"name":"x","resourceVersion":"5"}}', "application/json", 0, ""),
    ],
)
def test_unreadable_bodies_are_refused(
    cluster: Cluster, content: bytes, media: str, code: int, text: str
) -> None:
    headers = {"content-type": media}
    answer = cluster.client.post(cluster.path("pods"), content=content, headers=headers)
    assert answer.status_code == code or (code == 0 and answer.status_code >= 400)
    assert answer.json()["kind"] == "Status"
    assert text in answer.json()["message"]


def test_a_stale_write_conflicts_and_a_fresh_one_does_not(cluster: Cluster) -> None:
    first = cluster.create("configmaps", config_map())
    path = cluster.path("configmaps", "c")
    second = cluster.ok(cluster.client.put(path, json=first | {"data": {"a": "2"}}))
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    answer = cluster.client.put(path, json=first | {"data": {"a": "3"}})
    assert answer.status_code == 409
    assert answer.json()["reason"] == "Conflict"
    assert answer.json()["message"] == (
        'Operation cannot be fulfilled on configmaps "c": the object has been modified; please '
        "apply your changes to the latest version and try again"
    )
    patch = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {}}
    assert cluster.patch(path, patch).status_code in (200, 409)
    assert cluster.patch(path, patch | {"data": {"b": "1"}}).status_code == 409


def test_a_write_that_changes_nothing_keeps_the_version(cluster: Cluster) -> None:
    made = cluster.create("configmaps", config_map())
    again = cluster.ok(cluster.patch(cluster.path("configmaps", "c"), {"data": {"a": "1"}}))
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_a_put_must_fit_its_url_and_uid(cluster: Cluster) -> None:
    made = cluster.create("configmaps", config_map())
    other = {**made, "metadata": {**made["metadata"], "uid": "other", "resourceVersion": ""}}
    answer = cluster.client.put(cluster.path("configmaps", "c"), json=other)
    assert (answer.status_code, answer.json()["reason"]) == (409, "Conflict")
    assert "UID in precondition: other" in answer.json()["message"]
    answer = cluster.client.put(cluster.path("configmaps", "elsewhere"), json=made)
    assert answer.status_code == 400
    assert "does not match the name on the URL" in answer.json()["message"]


def test_a_lease_needs_its_version_and_may_be_made_by_put(cluster: Cluster) -> None:
    api = "/apis/coordination.k8s.io/v1"
    lease = {"metadata": {"name": "n1"}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    path = cluster.path("leases", "n1", api=api)
    assert cluster.client.put(path, json=lease).status_code == 201
    answer = cluster.client.put(path, json=lease)
    assert answer.status_code == 422
    assert "must be specified for an update" in answer.json()["message"]
    lease["spec"]["renewTime"] = "2026-01-01T00:00:00Z"
    answer = cluster.client.put(path, json=lease)
    assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")


def test_the_status_belongs_to_its_subresource(cluster: Cluster) -> None:
    made = cluster.create("pods", pod())
    path = cluster.path("pods", "a")
    made["status"] = {"phase": "Running"}
    assert cluster.ok(cluster.client.put(path, json=made))["status"]["phase"] == "Pending"
    made = cluster.get("pods", "a")
    made["status"] = {"phase": "Running"}
    made["spec"]["containers"][0]["image"] = "other:2"
    changed = cluster.ok(cluster.client.put(f"{path}/status", json=made))
    assert changed["status"]["phase"] == "Running"
    assert changed["spec"]["containers"][0]["image"] == "busybox:1"


def test_the_spec_of_a_pod_is_fixed_but_for_the_image(cluster: Cluster) -> None:
    cluster.create("pods", pod())
    path = cluster.path("pods", "a")
    answer = cluster.patch(path, {"spec": {"nodeName": "n1"}})
    assert answer.status_code == 422
    assert "pod updates may not change fields other than" in answer.json()["message"]
    patch = {"spec": {"containers": [{"name": "main", "image": "other:2"}]}}
    changed = cluster.ok(cluster.patch(path, patch, STRATEGIC_PATCH))
    assert changed["spec"]["containers"][0]["image"] == "other:2"
    assert changed["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_three_kinds_of_patch(cluster: Cluster) -> None:
    cluster.create("configmaps", config_map(labels={"keep": "1", "drop": "1"}))
    path = cluster.path("configmaps", "c")
    merged = cluster.ok(cluster.patch(path, {"metadata": {"labels": {"drop": None, "new": "2"}}}))
    assert merged["metadata"]["labels"] == {"keep": "1", "new": "2"}
    steps = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/data/b", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/new"},
    ]
    stepped = cluster.ok(cluster.patch(path, steps, JSON_PATCH))
    assert stepped["data"] == {"a": "1", "b": "2"}
    assert stepped["metadata"]["labels"] == {"keep": "1"}
    replaced = cluster.ok(
        cluster.patch(path, {"data": {"$patch": "replace", "z": "9"}}, STRATEGIC_PATCH)
    )
    assert replaced["data"] == {"z": "9"}


def test_conditions_merge_by_type_in_a_strategic_patch(cluster: Cluster) -> None:
    cluster.create("pods", pod())
    path = cluster.path("pods", "a/status")
    for kind, status in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        patch = {"status": {"conditions": [{"type": kind, "status": status}]}}
        changed = cluster.ok(cluster.patch(path, patch, STRATEGIC_PATCH))
    conditions = {each["type"]: each["status"] for each in changed["status"]["conditions"]}
    assert conditions == {"Ready": "True", "Initialized": "True"}
    patch = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    changed = cluster.ok(cluster.patch(path, patch, STRATEGIC_PATCH))
    assert [each["type"] for each in changed["status"]["conditions"]] == ["Initialized"]


def test_owner_references_merge_by_uid_and_finalizers_as_a_set(cluster: Cluster) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u1"}
    cluster.create("configmaps", config_map(ownerReferences=[owner], finalizers=["a/b"]))
    other = owner | {"uid": "u2"}
    patch = {"metadata": {"ownerReferences": [other], "finalizers": ["c/d"]}}
    changed = cluster.ok(cluster.patch(cluster.path("configmaps", "c"), patch, STRATEGIC_PATCH))
    assert [each["uid"] for each in changed["metadata"]["ownerReferences"]] == ["u2", "u1"]
    assert changed["metadata"]["finalizers"] == ["c/d", "a/b"]
    release = {"metadata": {"finalizers": None, "ownerReferences": None}}
    cluster.ok(cluster.patch(cluster.path("configmaps", "c"), release))


@pytest.mark.parametrize(
    ("patch", "media", "code"),
    [
        ([{"op": "test", "path": "/data/a", "value": "other"}], JSON_PATCH, 422),
        ([{"op": "remove", "path": "/nope/nope"}], JSON_PATCH, 422),
        ({"op": "remove"}, JSON_PATCH, 400),
        ([1], MERGE_PATCH, 422),
        ({"data": {"x": "1"}}, "application/json", 415),
        ({"data": {"x": 3}}, MERGE_PATCH, 422),
    ],
)
def test_patches_that_do_not_apply_are_refused(
    cluster: Cluster, patch: object, media: str, code: int
) -> None:
    cluster.create("configmaps", config_map())
    answer = cluster.patch(cluster.path("configmaps", "c"), patch, media)
    assert answer.status_code == code, answer.text
    assert cluster.get("configmaps", "c")["data"] == {"a": "1"}


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


def test_a_watch_tells_every_change_after_its_version(cluster: Cluster) -> None:
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


def test_unknown_fields_are_dropped(cluster: Cluster) -> None:
    body = config_map() | {"bogus": {"x": 1}}
    assert "bogus" not in cluster.create("configmaps", body)


def test_a_dry_run_leaves_nothing(cluster: Cluster) -> None:
    query = {"dryRun": "All"}
    answer = cluster.client.post(cluster.path("pods"), json=pod(), params=query)
    assert answer.status_code == 201
    assert cluster.client.get(cluster.path("pods", "a")).status_code == 404
    answer = cluster.client.post(cluster.path("pods"), json=pod(), params={"dryRun": "Some"})
    assert answer.status_code in (400, 422)


def test_an_event_has_two_faces(cluster: Cluster) -> None:
    about = {"kind": "Pod", "name": "a", "namespace": cluster.namespace}
    body = {
        "metadata": {"name": "e"},
        "involvedObject": about,
        "reason": "Tested",
        "message": "hello",
        "type": "Normal",
        "source": {"component": "test"},
        "count": 2,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    cluster.create("events", body)
    other = cluster.client.get(cluster.path("events", "e", api="/apis/events.k8s.io/v1"))
    if other.status_code == 404:
        pytest.skip("this server has no events.k8s.io/v1")
    seen = cluster.ok(other)
    assert (seen["note"], seen["regarding"], seen["deprecatedCount"]) == ("hello", about, 2)
    query = {"fieldSelector": "involvedObject.name=a,reason=Tested,source=test"}
    found = cluster.ok(cluster.client.get(cluster.path("events"), params=query))
    assert [each["metadata"]["name"] for each in found["items"]] == ["e"]


def test_a_quota_refuses_the_pod_too_many(cluster: Cluster) -> None:
    hard = {"pods": "2", f"requests.{GPU}": "2"}
    cluster.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    if cluster.kind == "real":  # there, kube-controller-manager counts
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        cluster.ok(cluster.patch(cluster.path("resourcequotas", "q/status"), status))
    answers = []

    def allowed() -> bool:
        answers.append(cluster.client.post(cluster.path("pods"), json=pod(limits={GPU: 2})))
        return answers[-1].status_code == 201

    poll(allowed, what="the quota is known")
    body = pod("b", limits={GPU: 1})
    answer = cluster.client.post(cluster.path("pods"), json=body)
    assert answer.status_code == 403
    assert answer.json()["message"] == (
        'pods "b" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=1, '
        "used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
    )
    used = cluster.get("resourcequotas", "q")["status"]["used"]
    assert used == {"pods": "1", f"requests.{GPU}": "2"}


def test_a_quota_on_limits_of_extended_resources_refuses_nothing(cluster: Cluster) -> None:
    hard = {"pods": "9", f"limits.{GPU}": "1"}
    cluster.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    if cluster.kind == "real":  # there, kube-controller-manager counts
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        cluster.ok(cluster.patch(cluster.path("resourcequotas", "q/status"), status))

    def counted() -> bool:
        body = pod(f"p-{uuid.uuid4().hex[:6]}", limits={GPU: 2})
        cluster.client.post(cluster.path("pods"), json=body)
        return cluster.get("resourcequotas", "q")["status"]["used"]["pods"] != "0"

    poll(counted, what="the quota is known")
    assert cluster.client.post(cluster.path("pods"), json=pod("b", limits={GPU: 2})).is_success
    assert cluster.get("resourcequotas", "q")["status"]["used"][f"limits.{GPU}"] == "0"


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

    def known() -> bool:
        return cluster.client.post(cluster.path("pods"), json=body).status_code in (201, 409)

    poll(known, what="the class is known to admission")
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
    broken["spec"] = {**deployment["spec"], "selector": {"matchLabels": {"app": "other"}}}  # type: ignore[dict-item]
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
