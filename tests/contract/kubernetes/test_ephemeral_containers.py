"""Ephemeral containers on both API servers: added by their subresource, and by no other way."""

import pytest
from hamicommon.k8s.types import Json

from tests.contract.kubernetes.bodies import pod
from tests.contract.kubernetes.servers import STRATEGIC_PATCH, Cluster

DEBUGGER: Json = {"name": "debugger", "image": "busybox:1"}


@pytest.fixture(autouse=True)
def known(server: Cluster) -> None:
    if server.minor < 25:
        pytest.skip(f"ephemeral containers came with Kubernetes 1.25; this is 1.{server.minor}")


def adding(*containers: Json) -> Json:
    return {"spec": {"ephemeralContainers": list(containers)}}


def path(cluster: Cluster) -> str:
    return cluster.path("pods", "a/ephemeralcontainers")


def test_one_is_added_and_nothing_else_changes(cluster: Cluster) -> None:
    made = cluster.create("pods", pod())
    change = adding(DEBUGGER) | {"metadata": {"labels": {"a": "b"}}}

    changed = cluster.ok(cluster.patch(path(cluster), change, STRATEGIC_PATCH))

    [added] = changed["spec"].pop("ephemeralContainers")
    assert added["name"] == "debugger"
    assert added["imagePullPolicy"] == "IfNotPresent"
    assert changed["spec"] == made["spec"]
    assert "labels" not in changed["metadata"]
    assert cluster.get("pods", "a/ephemeralcontainers")["spec"]["ephemeralContainers"] == [added]


def test_one_that_is_there_can_t_be_changed_or_removed(cluster: Cluster) -> None:
    cluster.create("pods", pod())
    made = cluster.ok(cluster.patch(path(cluster), adding(DEBUGGER), STRATEGIC_PATCH))

    changed = cluster.patch(path(cluster), adding({**DEBUGGER, "tty": True}), STRATEGIC_PATCH)
    made["spec"].pop("ephemeralContainers")
    removed = cluster.client.put(path(cluster), json=made)

    for answer, what in ((changed, "changed"), (removed, "removed")):
        assert answer.status_code == 422
        assert f'existing ephemeral containers "debugger" may not be {what}' in answer.text.replace(
            '\\"', '"'
        )


@pytest.mark.parametrize(
    ("container", "field"),
    [
        ({**DEBUGGER, "resources": {"limits": {"nvidia.com/gpu": "1"}}}, "resources"),
        ({**DEBUGGER, "name": "main"}, "name"),
    ],
)
def test_it_asks_for_nothing_and_has_a_name_of_its_own(
    cluster: Cluster, container: Json, field: str
) -> None:
    cluster.create("pods", pod())

    answer = cluster.patch(path(cluster), adding(container), STRATEGIC_PATCH)

    assert answer.status_code == 422
    causes = answer.json()["details"]["causes"]
    assert f"spec.ephemeralContainers[0].{field}" in {cause["field"] for cause in causes}


def test_no_new_pod_has_one_and_no_update_of_a_pod_adds_one(cluster: Cluster) -> None:
    body = pod("with")
    body["spec"]["ephemeralContainers"] = [{**DEBUGGER, "terminationMessagePolicy": "File"}]
    created = cluster.client.post(cluster.path("pods"), json=body)
    cluster.create("pods", pod())
    updated = cluster.patch(cluster.path("pods", "a"), adding(DEBUGGER), STRATEGIC_PATCH)

    assert created.status_code == 422
    assert "spec.ephemeralContainers: Forbidden: cannot be set on create" in created.text
    assert updated.status_code == 422
    assert "pod updates may not change fields other than" in updated.text


@pytest.mark.parametrize(
    "field",
    [
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
        {"securityContext": {"privileged": True}},
    ],
    ids=lambda field: next(iter(field)),
)
def test_variables_and_privileges_of_a_pod_that_exists_can_t_change(
    cluster: Cluster, field: Json
) -> None:
    """Admission need not judge updates of pods, because the API server refuses these."""
    cluster.create("pods", pod())
    change = {"spec": {"containers": [{"name": "main", **field}]}}

    answer = cluster.patch(cluster.path("pods", "a"), change, STRATEGIC_PATCH)

    assert answer.status_code == 422
    assert "pod updates may not change fields other than" in answer.text
