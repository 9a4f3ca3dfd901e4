"""Read the fields of pods that the agent keeps, in the API server's form.

A whole pod also has managed fields, volumes and conditions, and a node may have hundreds of pods.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import MIG_ALLOCATIONS
from hamicommon.k8s.mig import decode_reservations
from hamicommon.k8s.pod_annotations import PRELOAD
from hamicommon.k8s.types import Json
from hamicommon.vendors.nvidia.guarded import CONTROL_ENV

from hami_node_agent.grants.ports import MigDevice

logger = logging.getLogger(__name__)

GRANT_ANNOTATION = "hami.io/grant"
# The kubelet's, on the mirror of a static pod; the hash is the static pod's own uid.
MIRROR = "kubernetes.io/config.mirror"
CONFIG_HASH = "kubernetes.io/config.hash"

_METADATA = ("name", "namespace", "uid", "resourceVersion")
_ANNOTATIONS = (GRANT_ANNOTATION, MIG_ALLOCATIONS, PRELOAD.name, MIRROR, CONFIG_HASH)
_CONTAINERS = ("initContainers", "containers")
STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_CONTROL_BY_PRELOAD = {"true": {CONTROL_ENV: "false"}, "false": {CONTROL_ENV: "true"}}
_TERMINAL = frozenset({"Succeeded", "Failed"})


def ref_of(pod: Json) -> PodRef:
    """Return uid, namespace and name."""
    metadata = pod["metadata"]
    return PodRef(uid=metadata["uid"], namespace=metadata["namespace"], name=metadata["name"])


def signed_text(pod: Json) -> str:
    """Return the annotation `hami.io/grant`; empty if there is none."""
    return str((pod["metadata"].get("annotations") or {}).get(GRANT_ANNOTATION, ""))


def is_terminal(pod: Json) -> bool:
    """Return whether the pod has ended."""
    return phase_of(pod) in _TERMINAL


def phase_of(pod: Json) -> str:
    """Return `status.phase`; empty if unknown."""
    return str((pod.get("status") or {}).get("phase", ""))


def containers_of(pod: Json) -> list[dict[str, Any]]:
    """Return init containers, then app containers."""
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def container_ids(pod: Json) -> Iterator[tuple[str, str]]:
    """Yield (id, name) of started containers, without the prefix `containerd://`."""
    status = pod.get("status") or {}
    for key in STATUSES:
        for each in status.get(key) or []:
            _, _, container_id = str(each.get("containerID") or "").rpartition("//")
            if container_id:
                yield container_id, each["name"]


def literal_env(pod: Json, container: str) -> dict[str, str]:
    """Return the container's environment variables that have literal values.

    The pod's annotation about the library stands for the variable where that is not set.
    """
    return _control_of(pod) | {
        entry["name"]: entry["value"]
        for spec in containers_of(pod)
        if spec["name"] == container
        for entry in spec.get("env") or []
        if isinstance(entry.get("value"), str)
    }


def _control_of(pod: Json) -> dict[str, str]:
    wanted = (pod["metadata"].get("annotations") or {}).get(PRELOAD.name)
    return _CONTROL_BY_PRELOAD.get(str(wanted), {})


def mig_devices_of(pod: Json) -> list[MigDevice]:
    """Return the MIG slices that were made for the pod, by its annotation."""
    text = (pod["metadata"].get("annotations") or {}).get(MIG_ALLOCATIONS, "")
    try:
        reservations = decode_reservations(text)
    except InvalidRequest as exc:
        logger.debug("Failed to read MIG reservations", extra={"error": str(exc)})
        return []
    names = [container["name"] for container in containers_of(pod)]
    return [
        MigDevice(pod=ref_of(pod), container=names[one.container_index], reservation=one)
        for one in reservations
        if one.mig_uuid and one.container_index < len(names)
    ]


def devices_of(container: dict[str, Any], resource: str) -> int:
    """Return the number of `resource` devices that the container requests; 0 if malformed."""
    quantity = ((container.get("resources") or {}).get("limits") or {}).get(resource, "0")
    text = str(quantity)
    return int(text) if text.isascii() and text.isdigit() else 0


def kept_of(pod: Json) -> Json:
    """Return the fields of a pod that the agent keeps.

    Identity, our annotations, phase, and of each container the name, literal variables, limits and
    the runtime's id.
    """
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
        # The kubelet resolves those with `valueFrom`.
        "env": [entry for entry in container.get("env") or () if "value" in entry],
        "resources": _only(container.get("resources") or {}, ("limits",)),
    }


def _only(item: Json, keys: tuple[str, ...]) -> Json:
    return {key: item[key] for key in keys if key in item}
