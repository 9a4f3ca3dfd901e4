"""One version of a stored object: its bytes, and the fields by which lists and watches select.

A `StoredObject` never changes; `load()` decodes a new copy each time, so no mutable body is
shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema.resources import BY_KIND, STORED, Resource

Key = tuple[str, str, str]  # (collection, namespace or "", name)
# Stands for an owner of a kind that is not served, so that its existence is unknown.
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Version of an object; `raw` is JSON without `kind` and `apiVersion`, which readers add."""

    key: Key
    version: int
    uid: str
    raw: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    owners: tuple[str, ...]  # uids of the objects with which this one is deleted

    def load(self) -> Json:
        """Return a new decoded copy."""
        body: Json = orjson.loads(self.raw)
        return body

    @property
    def namespace(self) -> str:
        """Namespace of the object; empty if it has none."""
        return self.key[1]

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.key[2]


def seal(collection: str, body: Json, version: int) -> StoredObject:
    """Set the body's resourceVersion and encode it; the caller must not use `body` afterwards."""
    meta = body["metadata"]
    meta["resourceVersion"] = str(version)
    body.pop("kind", None)
    body.pop("apiVersion", None)
    key = (collection, meta.get("namespace", ""), meta["name"])
    return StoredObject(
        key,
        version,
        meta["uid"],
        orjson.dumps(body),
        meta.get("labels") or {},
        selectable_fields(STORED[collection], body),
        _owners(meta),
    )


def unseal(key: Key, version: int, raw: bytes) -> StoredObject:
    """Return a version that was read from disk."""
    body = orjson.loads(raw)
    meta = body["metadata"]
    fields = selectable_fields(STORED[key[0]], body)
    return StoredObject(
        key, version, meta["uid"], raw, meta.get("labels") or {}, fields, _owners(meta)
    )


def selectable_fields(resource: Resource, body: Json) -> dict[str, str]:
    """Return the values of the resource's field-selector labels."""
    meta = body["metadata"]
    fields = {"metadata.name": meta["name"]}
    if resource.namespaced:
        fields["metadata.namespace"] = meta.get("namespace", "")
    for label, absent in resource.fields.items():
        fields[label] = _text(_dig(body, label), absent)
    if resource.store_key == "events":
        source = (body.get("source") or {}).get("component", "")
        fields["source"] = source or body.get("reportingComponent", "")
    return fields


def _owners(meta: Json) -> tuple[str, ...]:
    return tuple(
        owner.get("uid", "") if (owner.get("apiVersion"), owner.get("kind")) in BY_KIND else UNKNOWN
        for owner in meta.get("ownerReferences") or ()
    )


def _dig(body: Json, path: str) -> Any:
    value: Any = body
    for part in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _text(value: Any, absent: str) -> str:
    if value is None or value == "":
        return absent
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if not isinstance(value, dict) else absent
