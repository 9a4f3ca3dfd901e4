"""Validation of objects: the rules that users violate, with the real server's messages.

Each function returns the violations. Sources: apimachinery `util/validation` and `field`,
kubernetes `pkg/apis/core/validation`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import Cause
from kubelocal.apiserver.schema.resources import Resource
from kubelocal.apiserver.storage.selectors import from_label_selector

_EPHEMERAL = "ephemeralContainers"
_WORKLOADS = ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Job")
_ANNOTATIONS_LIMIT = 256 * 1024
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_POSITIVE = "must be greater than or equal to 0"
_FIXED = (
    "pod updates may not change fields other than `spec.containers[*].image`, "
    "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or "
    "`spec.tolerations` (only additions to existing tolerations)"
)
# Grammar -> (pattern, maximum length, the real server's description).
_GRAMMARS = {
    "label": (
        "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
        63,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
        "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc'",
    ),
    "subdomain": (
        "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        253,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
        "'.', and must start and end with an alphanumeric character (e.g. 'example.com'",
    ),
    "value": (
        "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
        63,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
        "'.', and must start and end with an alphanumeric character (e.g. 'MyValue'",
    ),
    "key": (
        "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
        63,
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and "
        "end with an alphanumeric character (e.g. 'MyName'",
    ),
    "variable": (
        "[-._a-zA-Z][-._a-zA-Z0-9]*",
        None,
        "a valid environment variable name must consist of alphabetic characters, digits, '_', "
        "'-', or '.', and must not start with a digit (e.g. 'my.env-name'",
    ),
}


def validate_create(resource: Resource, body: Json) -> list[Cause]:
    """Return the violated rules of a new object, after defaulting and admission."""
    causes = list(_metadata(resource, body["metadata"]))
    if resource.kind == "Pod" and body.get("spec", {}).get(_EPHEMERAL):
        causes.append(_forbidden(f"spec.{_EPHEMERAL}", "cannot be set on create"))
    return causes + _spec(resource, body)


def validate_update(resource: Resource, subresource: str, old: Json, new: Json) -> list[Cause]:
    """Return the violated rules of a change."""
    causes = list(_metadata(resource, new["metadata"]))
    before, after = old.get("spec", {}), new.get("spec", {})
    if subresource == "ephemeralcontainers":
        return causes + list(_ephemeral_update(before, after))
    if subresource and resource.kind != "Node":
        return causes
    if resource.kind == "Pod":
        return causes + _pod_update(before, after)
    return causes + _spec(resource, new)


def validate_pod_spec(field: str, spec: Json) -> list[Cause]:
    """Return the violated rules of `spec` at path `field`."""
    causes = list(_check_names(f"{field}.volumes", spec.get("volumes", []), set()))
    if not spec.get("containers"):
        causes.append(_required_cause(f"{field}.containers"))
    volumes = {volume.get("name", "") for volume in spec.get("volumes", [])}
    seen: set[str] = set()
    for part in ("containers", "initContainers"):
        causes += _containers(f"{field}.{part}", spec.get(part, []), seen, volumes)
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        policy = spec.get("restartPolicy", "")
        causes.append(_not_supported(f"{field}.restartPolicy", policy, _RESTART_POLICIES))
    return causes + list(_labels(f"{field}.nodeSelector", spec.get("nodeSelector", {})))


def is_extended(name: str) -> bool:
    """Return whether a resource is an extended one, which is counted in whole units."""
    if "/" not in name or name.startswith("requests."):
        return False
    return re.search(r"(^|\.)kubernetes\.io/", name) is None


def invalid_value(field: str, value: Any, detail: str) -> Cause:
    """Return the cause for a field with an invalid value."""
    text = f"Invalid value: {json.dumps(value)}: {detail}"
    return Cause(field=field, reason="FieldValueInvalid", message=text)


def _metadata(resource: Resource, meta: Json) -> Iterator[Cause]:
    if not meta.get("name"):
        yield _required_cause("metadata.name", "name or generateName is required")
    else:
        grammar = "label" if resource.kind in ("Namespace", "Service") else "subdomain"
        yield from _grammar("metadata.name", meta["name"], grammar)
    yield from _labels("metadata.labels", meta.get("labels", {}))
    size = 0
    for key, value in meta.get("annotations", {}).items():
        yield from _check_qualified_name("metadata.annotations", key.lower())
        size += len(key.encode()) + len(value.encode())
    if size > _ANNOTATIONS_LIMIT:
        text = f"Too long: must have at most {_ANNOTATIONS_LIMIT} bytes"
        yield Cause(field="metadata.annotations", reason="FieldValueTooLong", message=text)


def _spec(resource: Resource, body: Json) -> list[Cause]:
    if resource.kind == "Pod":
        return validate_pod_spec("spec", body.get("spec", {}))
    if resource.kind in _WORKLOADS:
        return _workload(resource, body.get("spec", {}))
    if resource.kind == "Node":
        parts = ("capacity", "allocatable")
        amounts = {part: body.get("status", {}).get(part, {}) for part in parts}
        return [
            cause
            for part in parts
            for name, text in amounts[part].items()
            for cause in _amount(f"status.{part}.{name}", name, text)
        ]
    return []


def _workload(resource: Resource, spec: Json) -> list[Cause]:
    template = spec.get("template", {})
    causes: list[Cause] = []
    labels = template.get("metadata", {}).get("labels", {})
    if not spec.get("selector"):
        causes.append(_required_cause("spec.selector"))
    elif not from_label_selector(spec["selector"])(labels):
        text = "`selector` does not match template `labels`"
        causes.append(invalid_value("spec.template.metadata.labels", labels, text))
    if spec.get("replicas", 0) < 0:
        causes.append(invalid_value("spec.replicas", spec["replicas"], _POSITIVE))
    causes += validate_pod_spec("spec.template.spec", template.get("spec", {}))
    allowed = ("OnFailure", "Never") if resource.kind == "Job" else ("Always",)
    policy = template.get("spec", {}).get("restartPolicy")
    if policy in _RESTART_POLICIES and policy not in allowed:
        causes.append(_not_supported("spec.template.spec.restartPolicy", policy, allowed))
    return causes


def _pod_update(old: Json, new: Json) -> list[Cause]:
    """Return the violations of a pod update: images, deadline, new tolerations may change."""
    if causes := validate_pod_spec("spec", new):
        return causes
    kept = all(each in new.get("tolerations", []) for each in old.get("tolerations", []))
    return [] if kept and _fixed_part(old) == _fixed_part(new) else [_forbidden("spec", _FIXED)]


def _fixed_part(spec: Json) -> Json:
    free = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    fixed = {name: value for name, value in spec.items() if name not in free}
    for part in ("containers", "initContainers"):
        if part in fixed:
            fixed[part] = [
                {name: value for name, value in container.items() if name != "image"}
                for container in fixed[part]
            ]
    return fixed


def _ephemeral_update(old: Json, new: Json) -> Iterator[Cause]:
    """Return the violations of an update of ephemeral containers: only new ones may come."""
    field = f"spec.{_EPHEMERAL}"
    volumes = {volume.get("name", "") for volume in new.get("volumes", [])}
    parts = ("initContainers", "containers")
    seen = {container.get("name", "") for part in parts for container in new.get(part, [])}
    listed = new.get(_EPHEMERAL, [])
    yield from _containers(field, listed, seen, volumes)
    for index, container in enumerate(listed):
        if container.get("resources"):
            text = "cannot be set for an Ephemeral Container"
            yield _forbidden(f"{field}[{index}].resources", text)
    now = {container.get("name"): container for container in listed}
    for container in old.get(_EPHEMERAL, []):
        name = container.get("name")
        if now.get(name) != container:
            what = "changed" if name in now else "removed"
            yield _forbidden(field, f'existing ephemeral containers "{name}" may not be {what}')


def _containers(
    field: str, containers: list[Json], seen: set[str], volumes: set[str]
) -> Iterator[Cause]:
    """Return the violated rules of containers; `seen`: names of previous ones."""
    yield from _check_names(field, containers, seen)
    for index, container in enumerate(containers):
        at = f"{field}[{index}]"
        if not container.get("image"):
            yield _required_cause(f"{at}.image")
        for number, variable in enumerate(container.get("env", [])):
            if not variable.get("name"):
                yield _required_cause(f"{at}.env[{number}].name")
            else:
                yield from _grammar(f"{at}.env[{number}].name", variable["name"], "variable")
        for number, mount in enumerate(container.get("volumeMounts", [])):
            if mount.get("name") not in volumes:
                text = f"Not found: {json.dumps(mount.get('name', ''))}"
                name = f"{at}.volumeMounts[{number}].name"
                yield Cause(field=name, reason="FieldValueNotFound", message=text)
        yield from _requirements(f"{at}.resources", container.get("resources", {}))


def _check_names(field: str, items: list[Json], seen: set[str]) -> Iterator[Cause]:
    """Check that each item has a unique name."""
    for index, item in enumerate(items):
        at, name = f"{field}[{index}].name", item.get("name", "")
        if not name:
            yield _required_cause(at)
            continue
        yield from _grammar(at, name, "label")
        if name in seen:
            text = f"Duplicate value: {json.dumps(name)}"
            yield Cause(field=at, reason="FieldValueDuplicate", message=text)
        seen.add(name)


def _requirements(field: str, resources: Json) -> Iterator[Cause]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            at = f"{field}.{part}[{name}]"
            yield from _check_qualified_name(at, name)
            standard = name in _STANDARD or name.startswith(("hugepages-", "attachable-volumes-"))
            if "/" not in name and not standard:
                text_ = "must be a standard resource type or fully qualified"
                yield invalid_value(at, name, text_)
                yield invalid_value(at, name, "must be a standard resource for containers")
            yield from _amount(at, name, text)
    for name, request in requests.items():
        whole = is_extended(name) or name.startswith("hugepages-")
        limit = limits.get(name)
        if limit is None and whole:
            text = "Limit must be set for non overcommitable resources"
            yield _required_cause(f"{field}.limits", text)
        elif limit is not None and whole and parse_exact(request) != parse_exact(limit):
            yield invalid_value(f"{field}.requests", request, f"must be equal to {name} limit")
        elif limit is not None and parse_exact(request) > parse_exact(limit):
            text = f"must be less than or equal to {name} limit"
            yield invalid_value(f"{field}.requests", request, text)


def _amount(field: str, name: str, text: str) -> Iterator[Cause]:
    amount = parse_exact(text)
    if amount < 0:
        yield invalid_value(field, text, _POSITIVE)
    elif amount.denominator != 1 and (is_extended(name) or name.startswith("hugepages-")):
        yield invalid_value(field, text, "must be an integer")


def _labels(field: str, labels: Json) -> Iterator[Cause]:
    for key, value in labels.items():
        yield from _check_qualified_name(field, key)
        yield from _grammar(field, value, "value")


def _check_qualified_name(field: str, name: str) -> Iterator[Cause]:
    """Check a qualified name `[prefix/]name`, as of label keys and resources."""
    prefix, slash, rest = name.rpartition("/")
    if slash:
        yield from _grammar(field, prefix, "subdomain")
    yield from _grammar(field, rest, "key")


def _grammar(field: str, text: str, grammar: str) -> Iterator[Cause]:
    pattern, longest, sentence = _GRAMMARS[grammar]
    if longest is not None and len(text) > longest:
        yield invalid_value(field, text, f"must be no more than {longest} bytes")
    if re.fullmatch(pattern, text) is None:
        detail = f"{sentence}, regex used for validation is '{pattern}')"
        yield invalid_value(field, text, detail)


def _required_cause(field: str, detail: str = "") -> Cause:
    text = f"Required value: {detail}" if detail else "Required value"
    return Cause(field=field, reason="FieldValueRequired", message=text)


def _not_supported(field: str, value: Any, supported: tuple[str, ...]) -> Cause:
    choices = ", ".join(json.dumps(each) for each in supported)
    text = f"Unsupported value: {json.dumps(value)}: supported values: {choices}"
    return Cause(field=field, reason="FieldValueNotSupported", message=text)


def _forbidden(field: str, detail: str) -> Cause:
    return Cause(field=field, reason="FieldValueForbidden", message=f"Forbidden: {detail}")
