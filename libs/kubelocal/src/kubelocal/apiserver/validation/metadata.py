"""Rules of `metadata`, the same for every kind but for the grammar of the name."""

from __future__ import annotations

from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import Cause
from kubelocal.apiserver.schema.resource import Resource
from kubelocal.apiserver.validation import names
from kubelocal.apiserver.validation.causes import invalid, required, too_long

_GRAMMARS = {"Namespace": names.dns_label, "Service": names.service_name}
_ANNOTATIONS_LIMIT = 256 * 1024


def validate_metadata(resource: Resource, meta: Json) -> list[Cause]:
    """The broken rules of a new or changed object's metadata."""
    causes: list[Cause] = []
    name = meta.get("name", "")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    else:
        grammar = _GRAMMARS.get(resource.kind, names.dns_subdomain)
        if resource.group == "rbac.authorization.k8s.io":
            grammar = names.path_segment
        causes += [invalid("metadata.name", name, text) for text in grammar(name)]
    causes += validate_labels("metadata.labels", meta.get("labels", {}))
    causes += _annotations(meta.get("annotations", {}))
    causes += _owners(meta.get("ownerReferences", []))
    for index, finalizer in enumerate(meta.get("finalizers", [])):
        field = f"metadata.finalizers[{index}]"
        causes += [invalid(field, finalizer, text) for text in names.qualified(finalizer)]
    return causes


def validate_labels(field: str, labels: Json) -> list[Cause]:
    causes: list[Cause] = []
    for key, value in labels.items():
        causes += [invalid(field, key, text) for text in names.qualified(key)]
        causes += [invalid(field, value, text) for text in names.label_value(value)]
    return causes


def _annotations(annotations: Json) -> list[Cause]:
    causes: list[Cause] = []
    size = 0
    for key, value in annotations.items():
        complaints = names.qualified(key.lower())
        causes += [invalid("metadata.annotations", key, text) for text in complaints]
        size += len(key.encode()) + len(value.encode())
    if size > _ANNOTATIONS_LIMIT:
        causes.append(too_long("metadata.annotations", _ANNOTATIONS_LIMIT))
    return causes


def _owners(owners: list[Json]) -> list[Cause]:
    causes: list[Cause] = []
    for index, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                field = f"metadata.ownerReferences[{index}].{name}"
                causes.append(invalid(field, "", f"{name} must not be empty"))
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        text = "Only one reference can have Controller set to true"
        causes.append(invalid("metadata.ownerReferences", owners, text))
    return causes
