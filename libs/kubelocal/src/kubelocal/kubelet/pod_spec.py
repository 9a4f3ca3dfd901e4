"""Reading a pod's raw JSON: the few fields that a kubelet acts on."""

from __future__ import annotations

from collections.abc import Iterator

from hamicommon.k8s.quantities import parse_ceil
from hamicommon.k8s.types import Json

DEFAULT_GRACE_S = 30.0
# The kubelet gives every container this long, also when a pod is deleted by force.
MINIMUM_GRACE_S = 2.0


def uid(pod: Json) -> str:
    """`metadata.uid`."""
    return str(pod["metadata"]["uid"])


def name(pod: Json) -> str:
    """`metadata.name`."""
    return str(pod["metadata"]["name"])


def namespace(pod: Json) -> str:
    """`metadata.namespace`."""
    return str(pod["metadata"].get("namespace") or "default")


def path(pod: Json) -> str:
    """The pod's address at the API server."""
    return f"/api/v1/namespaces/{namespace(pod)}/pods/{name(pod)}"


def init_containers(pod: Json) -> list[Json]:
    """Init containers in order, sidecars among them."""
    return list(pod["spec"].get("initContainers") or [])


def app_containers(pod: Json) -> list[Json]:
    """The regular containers."""
    return list(pod["spec"]["containers"])


def all_containers(pod: Json) -> Iterator[Json]:
    """In the order in which devices are allocated: init containers first."""
    yield from init_containers(pod)
    yield from app_containers(pod)


def is_sidecar(pod: Json, container: Json) -> bool:
    """An init container that keeps running beside the regular ones."""
    is_init = any(c["name"] == container["name"] for c in init_containers(pod))
    return is_init and container.get("restartPolicy") == "Always"


def is_ordinary_init(pod: Json, container: Json) -> bool:
    """An init container that ends before the next one starts."""
    is_init = any(c["name"] == container["name"] for c in init_containers(pod))
    return is_init and container.get("restartPolicy") != "Always"


def restart_policy(pod: Json) -> str:
    """`Always`, `OnFailure` or `Never`."""
    return str(pod["spec"].get("restartPolicy") or "Always")


def limits(container: Json) -> dict[str, int]:
    """Limits in base units; devices are allocated by limits."""
    given = (container.get("resources") or {}).get("limits") or {}
    return {resource: parse_ceil(amount) for resource, amount in given.items()}


def is_terminal(pod: Json) -> bool:
    """Whether the pod has ended by its API object."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_deleting(pod: Json) -> bool:
    """Whether somebody asked for the pod's deletion."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def grace_s(pod: Json) -> float:
    """Seconds between SIGTERM and SIGKILL."""
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    if given is None:
        given = pod["spec"].get("terminationGracePeriodSeconds")
    seconds = DEFAULT_GRACE_S if given is None else float(given)
    return max(seconds, MINIMUM_GRACE_S)
