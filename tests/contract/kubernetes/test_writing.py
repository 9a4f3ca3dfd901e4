"""Writing objects: fields that the server sets, refusals, versions, patches, dry runs.

The same cases on our server and on the real one.
"""

import pytest
from hamicommon.k8s.types import Json

from tests.contract.kubernetes.bodies import config_map, pod
from tests.contract.kubernetes.servers import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Cluster,
)

GPU = "nvidia.com/gpu"


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


@pytest.mark.parametrize(
    ("written", "kept"),
    [("1E400", "10e399"), ("9223372036854775808", "9223372036854775808"), ("100E", "100E")],
)
def test_an_amount_beyond_an_int64_is_kept_as_it_can_be(
    cluster: Cluster, written: str, kept: str
) -> None:
    made = cluster.create("pods", pod(limits={"memory": written}))

    assert made["spec"]["containers"][0]["resources"]["limits"] == {"memory": kept}


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
    # 1.36 has "bytes", 1.20 had "characters".
    assert "must be no more than 63 " in status["message"]
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


def test_the_times_of_a_lease_have_microseconds(cluster: Cluster) -> None:
    api = "/apis/coordination.k8s.io/v1"
    lease = {"metadata": {"name": "n1"}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    made = cluster.create("leases", lease, api=api)
    made["spec"]["renewTime"] = "2026-01-01T00:00:00Z"
    answer = cluster.client.put(cluster.path("leases", "n1", api=api), json=made)
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


@pytest.mark.parametrize("media", [MERGE_PATCH, STRATEGIC_PATCH])
def test_a_patch_that_is_no_object_is_refused(cluster: Cluster, media: str) -> None:
    cluster.create("configmaps", config_map())
    answer = cluster.patch(cluster.path("configmaps", "c"), [1], media)
    # Servers before 1.25 merge the list first, and find then that it is no ConfigMap.
    merges = media == MERGE_PATCH and cluster.minor < 25
    assert answer.status_code == (422 if merges else 400), answer.text
    assert cluster.get("configmaps", "c")["data"] == {"a": "1"}


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
