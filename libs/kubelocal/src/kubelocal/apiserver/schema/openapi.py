"""The OpenAPI documents, built from the field table: v2 for kubectl's validation and merge rules,
v3 per group for newer clients and `kubectl explain`.

`openapi_proto` encodes v2 in the form in which clients ask for it.
"""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cache

from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema import discovery, fields, merge_keys
from kubelocal.apiserver.schema.resource import Resource
from kubelocal.apiserver.schema.resources import RESOURCES

_PLAIN: dict[str, Json] = {
    "string": {"type": "string"},
    "integer": {"type": "integer", "format": "int64"},
    "number": {"type": "number", "format": "double"},
    "boolean": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "format": "byte"},
    "quantity": {"type": "string"},
    "intorstring": {"type": "string", "format": "int-or-string"},
    "any": {"type": "object"},
}
_GVK = "x-kubernetes-group-version-kind"
_ACTIONS = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}
_PATCH_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")


@cache
def v2() -> Json:
    """The whole document, version 2."""
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": str(discovery.version()["gitVersion"])},
        "paths": _paths(RESOURCES, _v2_parameter),
        "definitions": _definitions(fields.definitions().keys(), "#/definitions/"),
    }


def v3_index() -> Json:
    """Where the document of each group and version is."""
    paths = dict.fromkeys(_root(each).lstrip("/") for each in RESOURCES)
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


@cache
def v3(path: str) -> Json | None:
    """The document of `api/v1` or `apis/GROUP/VERSION`, or None where it is not served."""
    served = tuple(each for each in RESOURCES if _root(each).lstrip("/") == path)
    if not served:
        return None
    reachable = _reachable([each.schema for each in served])
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": str(discovery.version()["gitVersion"])},
        "paths": _paths(served, _v3_parameter),
        "components": {"schemas": _definitions(reachable, "#/components/schemas/")},
    }


def public_name(definition: str) -> str:
    """`V1Pod` -> `io.k8s.api.v1.Pod`."""
    found = re.fullmatch(r"([A-Z][a-z]+)??(V\d+(?:alpha\d+|beta\d+)?)([A-Z].*)", definition)
    if found is None:
        return f"io.k8s.api.{definition}"
    parts = [part.lower() for part in found.groups()[:2] if part]
    return ".".join(["io.k8s.api", *parts, found[3]])


def _definitions(names: Container[str], prefix: str) -> Json:
    kinds: dict[str, list[Json]] = {}
    for each in RESOURCES:
        kinds.setdefault(each.schema, []).append(_gvk(each))
    table = fields.definitions()
    return {
        public_name(name): _definition(name, table[name], prefix, kinds.get(name))
        for name in table
        if name in names
    }


def _definition(name: str, entry: Json, prefix: str, kinds: list[Json] | None) -> Json:
    body: Json = {"type": "object", "properties": {}}
    for field, kind in entry["fields"].items():
        shape = _shape(kind, prefix)
        if key := merge_keys.MERGE_KEYS.get((name, field)):
            keeps = (name, field) in merge_keys.RETAINED_KEYS
            shape["x-kubernetes-patch-merge-key"] = key
            shape["x-kubernetes-patch-strategy"] = "merge,retainKeys" if keeps else "merge"
        elif (name, field) in merge_keys.MERGED_SETS:
            shape["x-kubernetes-patch-strategy"] = "merge"
        body["properties"][field] = shape
    if entry["required"]:
        body["required"] = entry["required"]
    if kinds:
        body[_GVK] = kinds
    return body


def _shape(kind: str, prefix: str) -> Json:
    if kind.startswith("[]"):
        return {"type": "array", "items": _shape(kind[2:], prefix)}
    if kind.startswith("{}"):
        return {"type": "object", "additionalProperties": _shape(kind[2:], prefix)}
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    return {"$ref": prefix + public_name(kind)}


def _paths(served: tuple[Resource, ...], parameter: object) -> Json:
    paths: Json = {}
    for resource in served:
        root = _root(resource)
        base = f"{root}/namespaces/{{namespace}}" if resource.namespaced else root
        collection = f"{base}/{resource.plural}"
        paths[collection] = {
            "get": _operation(resource, "list"),
            "post": _operation(resource, "post", parameter),
        }
        if resource.stored:
            paths[f"{collection}/{{name}}"] = {
                verb: _operation(resource, action, parameter if verb in ("put", "patch") else None)
                for verb, action in _ACTIONS.items()
            }
    return paths


def _operation(resource: Resource, action: str, parameter: object = None) -> Json:
    operation: Json = {
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        _GVK: _gvk(resource),
    }
    if callable(parameter):
        operation["parameters"] = [parameter(name) for name in _PATCH_PARAMETERS]
    return operation


def _v2_parameter(name: str) -> Json:
    return {"name": name, "in": "query", "type": "string", "uniqueItems": True}


def _v3_parameter(name: str) -> Json:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}


def _gvk(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _root(resource: Resource) -> str:
    return f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"


def _reachable(roots: list[str]) -> set[str]:
    table = fields.definitions()
    seen: set[str] = set()
    queue = list(roots)
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        kinds = (kind.lstrip("[]{}") for kind in table[name]["fields"].values())
        queue += [kind for kind in kinds if kind in table]
    return seen
