"""Discovery documents: groups, resources, version, and field validation.

Everything comes from the table in `resources`.
"""

from __future__ import annotations

from functools import cache

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema.resources import RESOURCES, VERSION, Resource

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
    """Return the answer of `/version`."""
    return {
        "major": str(MAJOR),
        "minor": str(MINOR),
        "gitVersion": f"v{MAJOR}.{MINOR}.0+hamictl",
        "platform": "linux/amd64",
    }


def discover(path: str) -> Json | None:
    """Return the discovery document at `path`, or None if there is none."""
    groups = dict.fromkeys(each.group for each in RESOURCES if each.group)
    match [part for part in path.split("/") if part]:
        case ["api"]:
            return {"kind": "APIVersions", "versions": [VERSION]}
        case ["apis"]:
            listed = [_group(name) for name in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["api", "v1"]:
            return _resource_list("")
        case ["apis", group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
        case ["apis", group, "v1"] if group in groups:
            return _resource_list(group)
    return None


@cache
def openapi() -> bytes:
    """Return OpenAPI v2 in protobuf (gnostic's `openapi.v2.Document`), as far as kubectl reads it.

    client-go has no other form (discovery_client.go, `OpenAPISchema`). kubectl 1.20 to 1.36 ask it
    before `apply` and `create` for one thing only: whether PATCH of the kind has a parameter
    `fieldValidation`. The numbers are those of gnostic's OpenAPIv2.proto.
    """
    paths = b"".join(_message(2, _patch_of(each)) for each in RESOURCES if each.stored)
    info = _text(1, "Kubernetes") + _text(2, str(version()["gitVersion"]))
    return _text(1, "2.0") + _message(2, info) + _message(8, paths)


def _group(name: str) -> Json:
    group_version = {"groupVersion": f"{name}/{VERSION}", "version": VERSION}
    return {"name": name, "versions": [group_version], "preferredVersion": group_version}


def _resource_list(group: str) -> Json:
    rows: list[Json] = []
    for resource in RESOURCES:
        if resource.group == group:
            rows.append(_row(resource))
            rows += [_subresource_row(resource, name) for name in resource.subresources]
    name = f"{group}/{VERSION}" if group else VERSION
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": name,
        "resources": rows,
    }


def _row(resource: Resource) -> Json:
    return {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _VERBS if resource.stored else ["create"],
        "shortNames": [resource.short_name] if resource.short_name else [],
        "categories": ["all"] if resource.in_all else [],
    }


def _subresource_row(resource: Resource, name: str) -> Json:
    kind, verbs = _SUBRESOURCES[name]
    row: Json = {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": kind or resource.kind,
        "verbs": verbs,
    }
    return row | ({"group": "policy", "version": "v1"} if name == "eviction" else {})


def _patch_of(resource: Resource) -> bytes:
    """Return a path with its PATCH operation: the parameters, and its kind."""
    parameters = b"".join(
        # A ParametersItem that holds a Parameter that holds a query parameter.
        _message(8, _message(1, _message(2, _message(3, _text(2, "query") + _text(4, name)))))
        for name in ("dryRun", "fieldManager", "fieldValidation")
    )
    gvk = {"group": resource.group, "version": VERSION, "kind": resource.kind}
    # Vendor extensions travel as YAML texts; JSON is YAML.
    value = _message(2, _text(2, orjson.dumps(gvk).decode()))
    extension = _message(13, _text(1, "x-kubernetes-group-version-kind") + value)
    path = f"/{resource.store_key}/{{name}}"
    return _text(1, path) + _message(2, _message(8, parameters + extension))


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())


def _message(number: int, payload: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
