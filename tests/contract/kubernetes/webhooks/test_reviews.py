"""Whose token is this, and may they? The same answers of our server and of the real one."""

from __future__ import annotations

import uuid

import pytest
from hamicommon.k8s.types import Json

from tests.contract.kubernetes.servers import Cluster

AUTHENTICATION = "/apis/authentication.k8s.io/v1"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
OWN_AUDIENCE = "https://kubernetes.default.svc"


def own_token(cluster: Cluster) -> str:
    return cluster.client.headers["authorization"].removeprefix("Bearer ")


def token_review(cluster: Cluster, **spec: object) -> Json:
    answer = cluster.client.post(f"{AUTHENTICATION}/tokenreviews", json={"spec": spec})
    assert answer.status_code == 201, answer.text
    body: Json = answer.json()
    assert (body["kind"], body["apiVersion"]) == ("TokenReview", "authentication.k8s.io/v1")
    status: Json = body["status"]
    return status


@pytest.mark.parametrize("audiences", [[], ["vault", OWN_AUDIENCE]], ids=["none", "one of ours"])
def test_a_known_token_names_its_user(cluster: Cluster, audiences: list[str]) -> None:
    status = token_review(cluster, token=own_token(cluster), audiences=audiences)

    assert status["authenticated"] is True
    assert status["audiences"] == [OWN_AUDIENCE]
    assert status["user"]["username"]
    assert {"system:masters", "system:authenticated"} <= set(status["user"]["groups"])


def test_an_unknown_token_is_not_authenticated(cluster: Cluster) -> None:
    status = token_review(cluster, token="forged")

    assert not status.get("authenticated")
    assert "invalid bearer token" in status["error"]
    assert status["user"] == {}


def test_a_token_for_another_audience_is_not_good(cluster: Cluster) -> None:
    status = token_review(cluster, token=own_token(cluster), audiences=["vault"])

    assert not status.get("authenticated")
    assert status["user"] == {}


def test_a_review_of_no_token_is_refused(cluster: Cluster) -> None:
    answer = cluster.client.post(f"{AUTHENTICATION}/tokenreviews", json={"spec": {}})

    assert answer.status_code == 400
    assert answer.json()["message"] == "token is required for TokenReview in authentication"


def access(cluster: Cluster, user: str = "", **spec: object) -> Json:
    body = {"spec": {"user": user, **spec}}
    answer = cluster.client.post(f"{AUTHORIZATION}/subjectaccessreviews", json=body)
    assert answer.status_code == 201, answer.text
    status: Json = answer.json()["status"]
    return status


def attributes(verb: str, **changes: str) -> Json:
    return {"group": "hami.io", "resource": "scheduler", "verb": verb, **changes}


@pytest.fixture
def name(cluster: Cluster) -> str:
    """A cluster role of that name, which lets read `scheduler.hami.io`."""
    made = f"reader-{uuid.uuid4().hex[:8]}"
    rules = [{"apiGroups": ["hami.io"], "resources": ["scheduler"], "verbs": ["get"]}]
    cluster.ok(
        cluster.client.post(
            f"{RBAC}/clusterroles", json={"metadata": {"name": made}, "rules": rules}
        )
    )
    return made


def bind(cluster: Cluster, role: str, *subjects: Json, namespace: str = "") -> None:
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    where = f"/namespaces/{namespace}/rolebindings" if namespace else "/clusterrolebindings"
    cluster.ok(
        cluster.client.post(
            f"{RBAC}{where}",
            json={
                "kind": kind,
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "metadata": {"name": role},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": role,
                },
                "subjects": list(subjects),
            },
        )
    )


def subject(kind: str, name: str, namespace: str = "") -> Json:
    found: Json = {"kind": kind, "name": name}
    if namespace:
        return found | {"namespace": namespace}
    return found | {"apiGroup": "rbac.authorization.k8s.io"}


def eventually(look: object, wanted: Json) -> Json:
    """The real server reads its roles by watches: a moment may pass."""
    import time

    deadline = time.monotonic() + 30
    assert callable(look)
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    answer: Json = found
    return answer


def test_a_role_lets_its_user_do_what_it_lists_and_no_more(cluster: Cluster, name: str) -> None:
    bind(cluster, name, subject("User", name))
    why = f'RBAC: allowed by ClusterRoleBinding "{name}" of ClusterRole "{name}" to User "{name}"'
    yes = {"allowed": True, "reason": why}

    got = eventually(lambda: access(cluster, name, resourceAttributes=attributes("get")), yes)

    assert got == yes
    for refused in (
        attributes("update"),
        attributes("get", group="other.io"),
        attributes("get", resource="schedulers"),
        attributes("get", subresource="x"),
    ):
        assert access(cluster, name, resourceAttributes=refused)["allowed"] is False
    assert access(cluster, "another", resourceAttributes=attributes("get"))["allowed"] is False


def test_groups_and_service_accounts_are_bound_too(cluster: Cluster, name: str) -> None:
    home = cluster.namespace
    bind(cluster, name, subject("Group", "team"), subject("ServiceAccount", "sa", home))
    asked = attributes("get")
    by_group = f'ClusterRoleBinding "{name}" of ClusterRole "{name}" to Group "team"'
    yes = {"allowed": True, "reason": f"RBAC: allowed by {by_group}"}

    got = eventually(
        lambda: access(cluster, "someone", groups=["team"], resourceAttributes=asked), yes
    )

    assert got["allowed"] is True
    account = f"system:serviceaccount:{home}:sa"
    status = access(cluster, account, resourceAttributes=asked)
    assert status["reason"].endswith(f'to ServiceAccount "sa/{home}"')
    assert access(cluster, f"{account}-2", resourceAttributes=asked)["allowed"] is False


def test_a_binding_of_a_namespace_counts_there_alone(cluster: Cluster, name: str) -> None:
    home = cluster.namespace
    bind(cluster, name, subject("User", name), namespace=home)
    there = attributes("get", namespace=home)
    why = f'RBAC: allowed by RoleBinding "{name}/{home}" of ClusterRole "{name}" to User "{name}"'
    yes = {"allowed": True, "reason": why}

    assert eventually(lambda: access(cluster, name, resourceAttributes=there), yes) == yes
    assert access(cluster, name, resourceAttributes=attributes("get"))["allowed"] is False


def test_masters_may_do_everything(cluster: Cluster) -> None:
    status = access(
        cluster, "x", groups=["system:masters"], nonResourceAttributes={"path": "/x", "verb": "get"}
    )

    assert status == {"allowed": True}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"user": "x"}, "spec.resourceAttributes"),
        ({"resourceAttributes": {"verb": "get"}}, "spec.user"),
        (
            {"user": "x", "resourceAttributes": {}, "nonResourceAttributes": {}},
            "spec.nonResourceAttributes",
        ),
    ],
    ids=["nothing asked", "nobody", "two questions"],
)
def test_an_incomplete_question_is_refused(cluster: Cluster, spec: Json, field: str) -> None:
    answer = cluster.client.post(f"{AUTHORIZATION}/subjectaccessreviews", json={"spec": spec})

    assert answer.status_code == 422, answer.text
    assert field in [cause["field"] for cause in answer.json()["details"]["causes"]]
