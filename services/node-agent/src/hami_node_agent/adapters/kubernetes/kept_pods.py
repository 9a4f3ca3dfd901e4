"""What the agent keeps of a pod: what it asks pods for, in the shape that the API server gives it.

A whole pod has managed fields, volumes and conditions besides, and a node may have hundreds.
"""

from __future__ import annotations

from typing import Any

from hamicommon.k8s.annotations import MIG_ALLOCATIONS, PRELOAD
from hamicommon.k8s.types import Json

GRANT_ANNOTATION = "hami.io/grant"
# The kubelet's, on the mirror of a static pod; the hash is the static pod's own uid.
MIRROR = "kubernetes.io/config.mirror"
CONFIG_HASH = "kubernetes.io/config.hash"

_METADATA = ("name", "namespace", "uid", "resourceVersion")
_ANNOTATIONS = (GRANT_ANNOTATION, MIG_ALLOCATIONS, PRELOAD, MIRROR, CONFIG_HASH)
_CONTAINERS = ("initContainers", "containers")
STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


def kept_of(pod: Json) -> Json:
    """Identity, our annotations, phase, and of each container what it asks for and is given, and
    the runtime's id of it."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept = _only(metadata, _METADATA)
    kept["annotations"] = _only(metadata.get("annotations") or {}, _ANNOTATIONS)
    return {
        "metadata": kept,
        "spec": {key: [_container(each) for each in spec.get(key) or ()] for key in _CONTAINERS},
        "status": {
            **_only(status, ("phase",)),
            **{
                key: [_only(each, ("name", "containerID")) for each in status[key]]
                for key in STATUSES
                if status.get(key)
            },
        },
    }


def _container(container: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": container["name"],
        # Those with `valueFrom` are the kubelet's to work out.
        "env": [entry for entry in container.get("env") or () if "value" in entry],
        "resources": _only(container.get("resources") or {}, ("limits",)),
    }


def _only(item: Json, keys: tuple[str, ...]) -> Json:
    return {key: item[key] for key in keys if key in item}
