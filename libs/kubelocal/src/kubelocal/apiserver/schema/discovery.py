"""What the server serves: `/api`, `/apis`, the resources of each group, `/version`."""

from __future__ import annotations

from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema.resource import Resource
from kubelocal.apiserver.schema.resources import RESOURCES

# The API level that is emulated: matchConditions and server-side field validation are final there.
MAJOR, MINOR = 1, 32
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES = {
    "status": ("", ["get", "patch", "update"]),
    "finalize": ("", ["update"]),
    "binding": ("Binding", ["create"]),
    "eviction": ("Eviction", ["create"]),
    "ephemeralcontainers": ("", ["get", "patch", "update"]),
}


def version() -> Json:
    git_version = f"v{MAJOR}.{MINOR}.0+hamictl"
    return {
        "major": str(MAJOR),
        "minor": str(MINOR),
        "gitVersion": git_version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


def answer(path: str, address: str) -> Json | None:
    """The discovery document at `path`, or None where there is none."""
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["api"]:
            return _core_versions(address)
        case ["apis"]:
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(name) for name in _groups()],
            }
        case ["api", "v1"]:
            return _resource_list("", "v1")
        case ["apis", group] if group in _groups():
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
        case ["apis", group, "v1"] if group in _groups():
            return _resource_list(group, "v1")
    return None


def _core_versions(address: str) -> Json:
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def _groups() -> list[str]:
    return list(dict.fromkeys(each.group for each in RESOURCES if each.group))


def _group(name: str) -> Json:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resource_list(group: str, version: str) -> Json:
    rows: list[Json] = []
    for resource in RESOURCES:
        if (resource.group, resource.version) == (group, version):
            rows.append(_row(resource))
            rows += [_subrow(resource, name) for name in resource.subresources]
    name = f"{group}/{version}" if group else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": name,
        "resources": rows,
    }


def _row(resource: Resource) -> Json:
    row: Json = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _VERBS if resource.stored else ["create"],
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    return row


def _subrow(resource: Resource, name: str) -> Json:
    kind, verbs = _SUBRESOURCES[name]
    row: Json = {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": kind or resource.kind,
        "verbs": verbs,
    }
    if name == "eviction":
        row |= {"group": "policy", "version": "v1"}
    return row
