"""Access to the fields of a pod's JSON that a kubelet uses."""

from __future__ import annotations

from collections.abc import Iterator

from hamicommon.k8s.quantities import parse_ceil
from hamicommon.k8s.types import Json

DEFAULT_GRACE_S = 30.0
# The kubelet gives every container this long, also when a pod is deleted by force.
MINIMUM_GRACE_S = 2.0


def uid(pod: Json) -> str:
    """Return `metadata.uid`."""
    return str(pod["metadata"]["uid"])


def name(pod: Json) -> str:
    """Return `metadata.name`."""
    return str(pod["metadata"]["name"])


def namespace(pod: Json) -> str:
    """Return `metadata.namespace`."""
    return str(pod["metadata"].get("namespace") or "default")


def path(pod: Json) -> str:
    """Return the pod's path at the API server."""
    return f"/api/v1/namespaces/{namespace(pod)}/pods/{name(pod)}"


def init_containers(pod: Json) -> list[Json]:
    """Return init containers in order, with sidecars."""
    return list(pod["spec"].get("initContainers") or [])


def app_containers(pod: Json) -> list[Json]:
    """Return the app containers."""
    return list(pod["spec"]["containers"])


def all_containers(pod: Json) -> Iterator[Json]:
    """Return all containers in the order of device allocation: init containers first."""
    yield from init_containers(pod)
    yield from app_containers(pod)


def is_sidecar(pod: Json, container: Json) -> bool:
    """Return whether an init container keeps running beside the app containers."""
    is_init = any(c["name"] == container["name"] for c in init_containers(pod))
    return is_init and container.get("restartPolicy") == "Always"


def is_ordinary_init(pod: Json, container: Json) -> bool:
    """Return whether an init container ends before the next one starts."""
    is_init = any(c["name"] == container["name"] for c in init_containers(pod))
    return is_init and container.get("restartPolicy") != "Always"


def restart_policy(pod: Json) -> str:
    """Return `Always`, `OnFailure` or `Never`."""
    return str(pod["spec"].get("restartPolicy") or "Always")


def limits(container: Json) -> dict[str, int]:
    """Return the limits in base units, by which devices are allocated."""
    given = (container.get("resources") or {}).get("limits") or {}
    return {resource: parse_ceil(amount) for resource, amount in given.items()}


def is_terminal(pod: Json) -> bool:
    """Return whether the pod object shows that the pod has ended."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_deleting(pod: Json) -> bool:
    """Return whether the pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def grace_s(pod: Json) -> float:
    """Return the seconds between SIGTERM and SIGKILL."""
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    if given is None:
        given = pod["spec"].get("terminationGracePeriodSeconds")
    seconds = DEFAULT_GRACE_S if given is None else float(given)
    return max(seconds, MINIMUM_GRACE_S)
