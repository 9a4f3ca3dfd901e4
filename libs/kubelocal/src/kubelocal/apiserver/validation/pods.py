"""Rules of pods and pod templates, and of what may change in a pod that exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import Cause
from kubelocal.apiserver.validation import names
from kubelocal.apiserver.validation.causes import (
    duplicate,
    forbidden,
    invalid,
    missing,
    not_supported,
    required,
)
from kubelocal.apiserver.validation.metadata import validate_labels
from kubelocal.apiserver.validation.resources import validate_requirements

_CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
}
_CONTAINER_CHOICES = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def validate_pod_spec(field: str, spec: Json) -> list[Cause]:
    """The broken rules of `spec`, found at `field`."""
    causes: list[Cause] = []
    volumes = {volume.get("name", "") for volume in spec.get("volumes", [])}
    causes += list(_volumes(f"{field}.volumes", spec.get("volumes", [])))
    if not spec.get("containers"):
        causes.append(required(f"{field}.containers"))
    seen: set[str] = set()
    for part in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(part, [])):
            causes += validate_container(f"{field}.{part}[{index}]", container, seen, volumes)
    for name, supported in _CHOICES.items():
        if spec.get(name) not in supported:
            causes.append(not_supported(f"{field}.{name}", spec.get(name, ""), supported))
    for name in ("schedulerName", "nodeName", "serviceAccountName", "priorityClassName"):
        if text := spec.get(name):
            causes += [
                invalid(f"{field}.{name}", text, complaint)
                for complaint in names.dns_subdomain(text)
            ]
    causes += validate_labels(f"{field}.nodeSelector", spec.get("nodeSelector", {}))
    causes += list(_tolerations(f"{field}.tolerations", spec.get("tolerations", [])))
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if grace < 0:
        text = "must be greater than or equal to 0"
        causes.append(invalid(f"{field}.terminationGracePeriodSeconds", grace, text))
    return causes


def validate_pod_update(old: Json, new: Json) -> list[Cause]:
    """The spec of a pod is fixed but for images, a deadline and more tolerations."""
    causes = validate_pod_spec("spec", new)
    if causes:
        return causes
    if _fixed_part(old) != _fixed_part(new) or not _only_added(old, new):
        return [
            forbidden(
                "spec",
                "pod updates may not change fields other than `spec.containers[*].image`, "
                "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or "
                "`spec.tolerations` (only additions to existing tolerations)",
            )
        ]
    return []


def _fixed_part(spec: Json) -> Json:
    fixed = {
        name: value
        for name, value in spec.items()
        if name not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    }
    for part in ("containers", "initContainers"):
        if part in fixed:
            fixed[part] = [
                {name: value for name, value in container.items() if name != "image"}
                for container in fixed[part]
            ]
    return fixed


def _only_added(old: Json, new: Json) -> bool:
    now = new.get("tolerations", [])
    return all(toleration in now for toleration in old.get("tolerations", []))


def validate_container(
    field: str, container: Json, seen: set[str], volumes: set[str]
) -> list[Cause]:
    """The broken rules of one container; `seen`: the names of those before it."""
    causes: list[Cause] = []
    name = container.get("name", "")
    if not name:
        causes.append(required(f"{field}.name"))
    else:
        causes += [invalid(f"{field}.name", name, text) for text in names.dns_label(name)]
        if name in seen:
            causes.append(duplicate(f"{field}.name", name))
        seen.add(name)
    if not container.get("image"):
        causes.append(required(f"{field}.image"))
    for choice, supported in _CONTAINER_CHOICES.items():
        if container.get(choice) not in supported:
            causes.append(not_supported(f"{field}.{choice}", container.get(choice, ""), supported))
    causes += list(_env(f"{field}.env", container.get("env", [])))
    causes += list(_mounts(f"{field}.volumeMounts", container.get("volumeMounts", []), volumes))
    causes += validate_requirements(f"{field}.resources", container.get("resources", {}))
    return causes


def _env(field: str, variables: list[Json]) -> Iterator[Cause]:
    for index, variable in enumerate(variables):
        at, name = f"{field}[{index}]", variable.get("name", "")
        if not name:
            yield required(f"{at}.name")
            continue
        yield from (invalid(f"{at}.name", name, text) for text in names.env_name(name))
        if variable.get("value") and variable.get("valueFrom"):
            yield invalid(f"{at}.valueFrom", "", "may not be specified when `value` is not empty")


def _mounts(field: str, mounts: list[Json], volumes: set[str]) -> Iterator[Cause]:
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        at, path = f"{field}[{index}]", mount.get("mountPath", "")
        if not mount.get("name"):
            yield required(f"{at}.name")
        elif mount["name"] not in volumes:
            yield missing(f"{at}.name", mount["name"])
        if not path:
            yield required(f"{at}.mountPath")
        elif path in paths:
            yield invalid(f"{at}.mountPath", path, "must be unique")
        paths.add(path)


def _volumes(field: str, volumes: list[Json]) -> Iterator[Cause]:
    seen: set[Any] = set()
    for index, volume in enumerate(volumes):
        at, name = f"{field}[{index}]", volume.get("name", "")
        if not name:
            yield required(f"{at}.name")
            continue
        yield from (invalid(f"{at}.name", name, text) for text in names.dns_label(name))
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        if len(volume) > 2:
            yield forbidden(at, "may not specify more than 1 volume type")


def _tolerations(field: str, tolerations: list[Json]) -> Iterator[Cause]:
    for index, toleration in enumerate(tolerations):
        at = f"{field}[{index}]"
        operator = toleration.get("operator", "Equal")
        if operator not in ("Equal", "Exists"):
            yield not_supported(f"{at}.operator", operator, ("Equal", "Exists"))
        if not toleration.get("key") and operator != "Exists":
            text = (
                "operator must be Exists when `key` is empty, which means "
                '"match all values and all keys"'
            )
            yield invalid(f"{at}.operator", operator, text)
        if toleration.get("effect", "NoExecute") not in ("", *_EFFECTS):
            yield not_supported(f"{at}.effect", toleration["effect"], _EFFECTS)
