"""Rules of ephemeral containers, which are added to a pod that exists (`kubectl debug`)."""

from __future__ import annotations

from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import Cause
from kubelocal.apiserver.validation.causes import forbidden
from kubelocal.apiserver.validation.pods import validate_container

EPHEMERAL = "ephemeralContainers"
_FORBIDDEN = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "ports", "resources")
_AT = f"spec.{EPHEMERAL}"


def validate_ephemeral_update(old: Json, new: Json) -> list[Cause]:
    """The broken rules of `spec.ephemeralContainers`: new ones may come, and no other may change.

    Source: kubernetes `pkg/apis/core/validation`, ValidatePodEphemeralContainersUpdate.
    """
    volumes = {volume.get("name", "") for volume in new.get("volumes", [])}
    seen = {
        container.get("name", "")
        for part in ("initContainers", "containers")
        for container in new.get(part, [])
    }
    causes: list[Cause] = []
    listed = new.get(EPHEMERAL, [])
    for index, container in enumerate(listed):
        at = f"{_AT}[{index}]"
        causes += validate_container(at, container, seen, volumes)
        causes += [
            forbidden(f"{at}.{field}", "cannot be set for an Ephemeral Container")
            for field in _FORBIDDEN
            if container.get(field)
        ]
    now = {container.get("name"): container for container in listed}
    for container in old.get(EPHEMERAL, []):
        name = container.get("name")
        if name not in now:
            text = f'existing ephemeral containers "{name}" may not be removed'
            causes.append(forbidden(_AT, text))
        elif now[name] != container:
            text = f'existing ephemeral containers "{name}" may not be changed'
            causes.append(forbidden(_AT, text))
    return causes
