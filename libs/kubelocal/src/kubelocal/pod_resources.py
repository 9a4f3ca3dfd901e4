"""Resources that pods occupy, counted as kube-scheduler and the kubelet do. Pure.

Amounts are integers: cpu in thousandths, everything else in whole units.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from hamicommon.k8s.quantities import parse_ceil, parse_milli

Amounts = dict[str, int]

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"


@lru_cache(maxsize=4096)
def amount(resource: str, quantity: str) -> int:
    """Return a quantity as an integer, rounded up, in Kubernetes' unit of the resource.

    Raises: InvalidRequest when it is not a quantity (the API server admits none such).
    """
    return parse_milli(quantity) if resource == CPU else parse_ceil(quantity)


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Return all quantities of a resource list as integers."""
    return {name: amount(name, str(value)) for name, value in (quantities or {}).items()}


def pod_requests(spec: Mapping[str, Any]) -> Amounts:
    """Return a pod's amounts on its node: the sum of containers, or the largest init container.

    An init container with restartPolicy Always (a sidecar) counts with the containers.
    """
    running: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            running = add(running, own)
            own = running
        else:
            own = add(running, own)
        peak = _maximum(peak, own)
    for container in spec.get("containers") or ():
        running = add(running, _requests(container))
    return add(_maximum(running, peak), amounts(spec.get("overhead")))


def add(left: Mapping[str, int], right: Mapping[str, int], sign: int = 1) -> Amounts:
    """Return the sum (with sign -1: the difference) by resource."""
    total = dict(left)
    for name, value in right.items():
        total[name] = total.get(name, 0) + sign * value
    return total


def names_of(spec: Mapping[str, Any]) -> frozenset[str]:
    """Return every resource that a container of the pod requests or limits."""
    return frozenset(
        name
        for container in _containers(spec)
        for kind in ("requests", "limits")
        for name in (container.get("resources") or {}).get(kind) or ()
    )


def _containers(spec: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()


def _requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    # A missing request equals the limit; the API server's defaulting does the same.
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _maximum(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {*left, *right}}
