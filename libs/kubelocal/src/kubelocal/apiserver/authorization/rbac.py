"""What the stored roles let a user do, for who asks by a SubjectAccessReview. Pure.

The rules are those of kube-apiserver's RBAC authorizer (plugin/pkg/auth/authorizer/rbac). The
emulated server itself asks nobody: a known token may do everything (`users`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hamicommon.k8s.types import Json

MASTERS = "system:masters"
"""Members of this group are never refused."""
_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest:
    """One question: may this user do this? Empty strings for what does not apply."""

    user: str
    groups: tuple[str, ...]
    verb: str
    path: str = ""
    """Of a URL that is no resource; then the rest is empty."""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The stored roles and bindings."""

    cluster_bindings: Iterable[Json]
    bindings: Iterable[Json]
    """Of the namespace that is asked about."""
    rules_of: Callable[[str, str, str], Iterable[Json] | None]
    """(kind, namespace, name) -> the rules of a role; None when there is no such role."""


def allowed_by(asked: AccessRequest, roles: Roles) -> str | None:
    """Why it is allowed, as the authorizer writes it; None when it is not."""
    if MASTERS in asked.groups:
        return ""
    for binding in roles.cluster_bindings:
        if found := _through(binding, asked, roles, namespace=""):
            return found
    if asked.namespace:
        for binding in roles.bindings:
            if found := _through(binding, asked, roles, namespace=asked.namespace):
                return found
    return None


def _through(binding: Json, asked: AccessRequest, roles: Roles, *, namespace: str) -> str:
    subject = next(
        (one for one in binding.get("subjects") or [] if _is(one, asked, namespace)), None
    )
    if subject is None:
        return ""
    role = binding["roleRef"]
    rules = roles.rules_of(role["kind"], namespace, role["name"])
    if not any(_grants(rule, asked) for rule in rules or ()):
        return ""
    name = binding["metadata"]["name"]
    what = f'RoleBinding "{name}/{namespace}"' if namespace else f'ClusterRoleBinding "{name}"'
    whom = subject["name"]
    if subject["kind"] == "ServiceAccount":
        whom += "/" + (subject.get("namespace") or namespace)
    return (
        f'RBAC: allowed by {what} of {role["kind"]} "{role["name"]}" to {subject["kind"]} "{whom}"'
    )


def _is(subject: dict[str, Any], asked: AccessRequest, namespace: str) -> bool:
    match subject["kind"]:
        case "User":
            return bool(subject["name"] == asked.user)
        case "Group":
            return subject["name"] in asked.groups
        case "ServiceAccount":
            home = subject.get("namespace") or namespace
            return bool(home) and asked.user == f"{_ACCOUNT}{home}:{subject['name']}"
    return False


def _grants(rule: Json, asked: AccessRequest) -> bool:
    if not _listed(asked.verb, rule.get("verbs")):
        return False
    if asked.path:
        return any(
            wanted == asked.path or (wanted.endswith("*") and asked.path.startswith(wanted[:-1]))
            for wanted in rule.get("nonResourceURLs") or ()
        )
    names = rule.get("resourceNames") or ()
    return (
        _listed(asked.group, rule.get("apiGroups"))
        and _resource(asked, rule.get("resources") or ())
        and (not names or asked.name in names)
    )


def _listed(value: str, allowed: Iterable[str] | None) -> bool:
    wanted = list(allowed or ())
    return "*" in wanted or value in wanted


def _resource(asked: AccessRequest, allowed: Iterable[str]) -> bool:
    whole = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    return any(
        wanted in ("*", whole) or (asked.subresource and wanted == f"*/{asked.subresource}")
        for wanted in allowed
    )
