"""Compare the rights that RBAC gives our accounts with their use in the audit log."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e_manifests.node.pod_objects import NAMESPACE

RBAC = "/apis/rbac.authorization.k8s.io/v1"
OURS = "labelSelector=app.kubernetes.io/part-of=hami"
_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource that a role of ours gives an account."""

    account: str
    namespace: str
    """Empty: of the whole cluster."""
    group: str
    resource: str
    """With its subresource, as in a rule."""
    name: str
    """Empty: any."""
    verb: str

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        group = f".{self.group}" if self.group else ""
        name = f" {self.name}" if self.name else ""
        return f"{self.account}: {self.verb} {self.resource}{group}{name}{place}"

    @property
    def rule(self) -> Json:
        """Return the rule of a role for this right."""
        names = {"resourceNames": [self.name]} if self.name else {}
        return {
            "apiGroups": [self.group],
            "resources": [self.resource],
            "verbs": [self.verb],
            **names,
        }


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """One kind of call that an account made."""

    account: str
    namespace: str
    group: str
    resource: str
    name: str
    verb: str

    def needs(self, right: Right) -> bool:
        """Return whether this right allows it."""
        return (
            (self.account, self.group, self.resource, self.verb)
            == (right.account, right.group, right.resource, right.verb)
            and right.namespace in ("", self.namespace)
            and right.name in ("", self.name)
        )

    @property
    def attributes(self) -> Json:
        """For a SubjectAccessReview."""
        resource, _, subresource = self.resource.partition("/")
        return {
            "namespace": self.namespace,
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "name": self.name,
        }


def list_granted_rights(api: httpx.Client) -> set[Right]:
    """By the roles of the manifests; kube-scheduler's are Kubernetes' own, and left out."""
    found: set[Right] = set()
    for kind, roles in (("rolebindings", "roles"), ("clusterrolebindings", "clusterroles")):
        rules = {each["metadata"]["name"]: each["rules"] for each in _items(api, roles)}
        for binding in _items(api, kind):
            namespace = binding["metadata"].get("namespace", "")
            for subject in binding["subjects"]:
                if subject["kind"] == "ServiceAccount":
                    of = rules.get(binding["roleRef"]["name"], ())
                    found |= set(rights_of(subject["name"], namespace, of))
    return found


def _items(api: httpx.Client, kind: str) -> list[Json]:
    answer = api.get(f"{RBAC}/{kind}?{OURS}")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def rights_of(account: str, namespace: str, rules: Iterable[Json]) -> Iterator[Right]:
    """Each one of these rules of a role."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    for verb in rule["verbs"]:
                        yield Right(account, namespace, group, resource, name, verb)


def calls(log: Path) -> set[Call]:
    """That were served, by our accounts."""
    found = set()
    for event in map(json.loads, log.read_text().splitlines()):
        user, reference = event["user"].get("username", ""), event.get("objectRef")
        served = event.get("responseStatus", {}).get("code") not in (401, 403)
        if user.startswith(_ACCOUNT) and reference and served:
            parts = (reference.get("resource", ""), reference.get("subresource", ""))
            found.add(
                Call(
                    user.removeprefix(_ACCOUNT),
                    reference.get("namespace", ""),
                    reference.get("apiGroup", ""),
                    "/".join(filter(None, parts)),
                    # A created object has its name in the body, which RBAC does not read.
                    "" if event["verb"] == "create" else reference.get("name", ""),
                    event["verb"],
                )
            )
    return found


class Mutants:
    """Users with all the rights of an account except one."""

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self._made: list[str] = []

    def without(self, right: Right, rights: Iterable[Right]) -> str:
        """The name of a user that has the account's other rights."""
        user = f"hami-mutant-{len(self._made)}"
        kept = [each for each in rights if each.account == right.account and each != right]
        cluster = [each.rule for each in kept if not each.namespace]
        # What shows that the API server has the binding.
        cluster.append({"nonResourceURLs": [f"/{user}"], "verbs": ["get"]})
        self._role(user, "", cluster)
        for namespace in sorted({each.namespace for each in kept} - {""}):
            self._role(user, namespace, [e.rule for e in kept if e.namespace == namespace])
        self._made.append(user)
        return user

    def _role(self, user: str, namespace: str, rules: list[Json]) -> None:
        kind = "Role" if namespace else "ClusterRole"
        place = f"{RBAC}/namespaces/{namespace}" if namespace else RBAC
        self._create(f"{place}/{kind.lower()}s", {"metadata": {"name": user}, "rules": rules})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": user}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]}
        self._create(f"{place}/{kind.lower()}bindings", binding)

    def _create(self, path: str, body: Json) -> None:
        answer = self._api.post(path, json=body)
        assert answer.status_code == 201, answer.text

    def is_known(self, user: str) -> bool:
        """Return whether the API server has the roles of a mutant; its caches take a moment."""
        spec = {"user": user, "nonResourceAttributes": {"path": f"/{user}", "verb": "get"}}
        return self._review(spec)

    def may(self, user: str, call: Call) -> bool:
        """Return whether that user could make the call."""
        return self._review({"user": user, "resourceAttributes": call.attributes})

    def _review(self, spec: Json) -> bool:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = self._api.post(path, json={"spec": spec})
        assert answer.status_code == 201, answer.text
        return bool(answer.json()["status"]["allowed"])


def denied_without(
    mutants: Mutants,
    used: set[Right],
    rights: set[Right],
    made: set[Call],
    wait: Callable[[Callable[[], bool], str], object],
) -> int:
    """Assert that removing a single right denies the calls that need it, and no other.

    Return the number of kinds of denied calls.
    """
    users = {right: mutants.without(right, rights) for right in sorted(used)}
    missed: set[Call] = set()
    for right, user in users.items():
        own = {call for call in made if call.account == right.account}
        # A call that two rules allow needs neither of them.
        others = rights - {right}
        needing = {c for c in own if not any(c.needs(each) for each in others)}
        allowed = {c for c in own - needing if any(c.needs(each) for each in others)}
        assert needing, f"{right}: another rule allows all of it"
        wait(
            lambda user=user, allowed=allowed: (
                mutants.is_known(user) and all(mutants.may(user, call) for call in allowed)
            ),
            f"{user} has the other rights",
        )
        assert [call for call in needing if mutants.may(user, call)] == [], str(right)
        missed |= needing
    return len(missed)
