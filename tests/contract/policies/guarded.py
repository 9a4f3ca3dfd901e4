"""A real API server with the namespace, roles and policies of `k8s/base`, and its users.

Service accounts authenticate with tokens that the server made for one of their pods, as kubelets'
do; people and the kubelet by impersonation, with the groups that they would have.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import yaml
from hamicommon.k8s.types import Json

from tests.waiting import wait

BASE = Path(__file__).parents[3] / "k8s" / "base"
SYSTEM = "hami-system"
TENANTS = "tenants"
GROUP = "rbac.authorization.k8s.io"
RBAC = f"/apis/{GROUP}/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{}}/rolebindings",
    "ValidatingAdmissionPolicy": f"{POLICIES}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{POLICIES}/validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": f"{POLICIES}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{POLICIES}/mutatingadmissionpolicybindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}


def manifests() -> Iterator[Json]:
    """Every object of `k8s/base`."""
    for path in sorted(BASE.rglob("*.yaml")):
        yield from (each for each in yaml.safe_load_all(path.read_text()) if each)


@dataclass(frozen=True, kw_only=True)
class User:
    """One caller of the API server, with its headers."""

    client: httpx.Client
    headers: tuple[tuple[str, str], ...] = ()

    def ask(self, method: str, path: str, body: Json | None = None, **how: str) -> httpx.Response:
        """`media`: of the body; all others are the query."""
        media = how.pop("media", "application/json")
        content = None if body is None else orjson.dumps(body)
        headers = [*self.headers, ("content-type", media)]
        return self.client.request(method, path, content=content, headers=headers, params=how)

    def post(self, path: str, body: Json, **query: str) -> httpx.Response:
        return self.ask("POST", path, body, **query)

    def patch(self, path: str, change: Json) -> httpx.Response:
        return self.ask("PATCH", path, change, media="application/strategic-merge-patch+json")

    def put(self, path: str, body: Json) -> httpx.Response:
        return self.ask("PUT", path, body)

    def apply(self, path: str, body: Json) -> httpx.Response:
        """Server-side."""
        media = "application/apply-patch+yaml"
        return self.ask("PATCH", path, body, media=media, fieldManager="test", force="true")

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)

    def delete(self, path: str) -> httpx.Response:
        return self.ask("DELETE", path)


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """The server, asked as its administrator."""

    admin: User
    kubeconfig: Path
    audit_log: Path

    def make(self, path: str, body: Json) -> Json:
        """Create an object as the administrator; an existing one stays."""
        answer = self.admin.post(path, body)
        assert answer.status_code in (201, 409), answer.text
        made: Json = answer.json()
        return made

    def bind(self, role: str, kind: str, name: str) -> Callable[[], None]:
        """Give a User, a Group or a ServiceAccount (`namespace:name`) a ClusterRole everywhere, and
        wait until the server knows. Return a function that removes it."""
        subject = {"kind": kind, "name": name}
        user, groups = name, []
        if kind == "ServiceAccount":
            subject["namespace"], _, subject["name"] = name.partition(":")
            user = f"system:serviceaccount:{name}"
        else:
            subject["apiGroup"] = GROUP
        if kind == "Group":
            user, groups = "anybody", [name]
        reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}
        body: Json = {
            "metadata": {"name": f"{role}-{name}".replace(":", ".")},
            "roleRef": reference,
            "subjects": [subject],
        }
        self.make(PLURALS["ClusterRoleBinding"], body)
        rule = self.admin.get(f"{PLURALS['ClusterRole']}/{role}").json()["rules"][0]
        attributes: Json = {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
        if "resources" in rule:
            resource, _, part = rule["resources"][0].partition("/")
            of = {"group": rule["apiGroups"][0], "resource": resource, "subresource": part}
            attributes = {"resourceAttributes": of | {"verb": rule["verbs"][0]}}
        asked = {"user": user, "groups": groups, **attributes}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

        def is_known() -> bool:
            return bool(self.admin.post(path, {"spec": asked}).json()["status"]["allowed"])

        wait(is_known, f"{name} has {role}")

        def unbind() -> None:
            self.admin.delete(f"{PLURALS['ClusterRoleBinding']}/{body['metadata']['name']}")
            wait(lambda: not is_known(), f"{name} has no {role}")

        return unbind

    def role(self, name: str, resources: list[str], verbs: list[str]) -> str:
        """A ClusterRole for the core group."""
        rule = {"apiGroups": [""], "resources": resources, "verbs": verbs}
        self.make(PLURALS["ClusterRole"], {"metadata": {"name": name}, "rules": [rule]})
        return name

    def person(self, name: str, *groups: str) -> User:
        """Return a user of these groups, by impersonation."""
        named = [("Impersonate-Group", each) for each in (*groups, "system:authenticated")]
        return User(client=self.admin.client, headers=(("Impersonate-User", name), *named))

    def account(self, namespace: str, name: str, *, node: str = "") -> User:
        """A service account, with the token of a pod on `node`; without one, of no pod."""
        self.make(
            PLURALS["ServiceAccount"].format(namespace),
            {"metadata": {"name": name, "namespace": namespace}},
        )
        spec: Json = {"expirationSeconds": 3600}
        if node:
            pod = self.pod(f"{name}-{node}", namespace, node=node, account=name)
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
            }
        path = f"{PLURALS['ServiceAccount'].format(namespace)}/{name}/token"
        answer = self.admin.post(path, {"spec": spec})
        assert answer.status_code == 201, answer.text
        token = answer.json()["status"]["token"]
        return User(client=self.admin.client, headers=(("authorization", f"Bearer {token}"),))

    def node(self, name: str, **metadata: Any) -> str:
        """A Node's path."""
        self.make("/api/v1/nodes", {"metadata": {"name": name, **metadata}})
        return f"/api/v1/nodes/{name}"

    def pod(
        self,
        name: str,
        namespace: str = TENANTS,
        *,
        node: str = "",
        account: str = "",
        **metadata: Any,
    ) -> Json:
        """A pod that is there, fit for every namespace."""
        container = {
            "name": "c",
            "image": "none",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        spec: Json = {
            "containers": [container],
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        if node:
            spec["nodeName"] = node
        if account:
            spec["serviceAccountName"] = account
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.make(path, {"metadata": {"name": name, **metadata}, "spec": spec})
        found: Json = self.admin.get(f"{path}/{name}").json()
        return found


def install(guarded: Guarded) -> None:
    """Namespaces, roles and policies, once all of them hold."""
    for kind, plural in PLURALS.items():
        for each in manifests():
            if each["kind"] == kind:
                guarded.make(plural.format(each["metadata"].get("namespace", "")), each)
    guarded.make("/api/v1/namespaces", {"metadata": {"name": TENANTS}})
    # The server learns of them in the order in which they were made.
    last = [each for each in manifests() if each["kind"].endswith("PolicyBinding")][-1]
    assert last["metadata"]["name"] == "hami-system-pods"
    canary = {"containers": [{"name": "c", "image": "none"}], "hostNetwork": True}
    body = {"metadata": {"name": "canary"}, "spec": canary}
    path = f"/api/v1/namespaces/{SYSTEM}/pods"
    wait(
        lambda: guarded.admin.post(path, body, dryRun="All").status_code == 403,
        "the policies hold",
    )


def is_refused(answer: httpx.Response, *texts: str) -> bool:
    """Return whether a policy of ours refused it, with a sentence that has these texts."""
    message = answer.json().get("message", "") if answer.status_code != 200 else ""
    assert answer.status_code == 403, (answer.status_code, answer.text)
    assert "ValidatingAdmissionPolicy 'hami-" in message, message
    for text in texts:
        assert text in message, message
    return True


def is_allowed(answer: httpx.Response) -> bool:
    assert answer.status_code in (200, 201), (answer.status_code, answer.text)
    return True
