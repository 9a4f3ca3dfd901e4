"""Parse a pod's JSON into `PodRequest`, the engine's input.

The scheduler calls `pod_request` once per filter; the pod watch calls `wants_devices`. Each vendor
reads its own resources (`vendors/`); this module orders the containers and reads the fields of the
pod as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import (
    ContainerRequest,
    DeviceRequest,
    HostRequest,
    PodRequest,
    Policy,
)
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_annotations import (
    GPU_POLICY,
    GROUP_MIN,
    NODE_POLICY,
    NVIDIA_NUMA_BIND,
    PREEMPTION_DELAY,
    SCORING_WEIGHTS,
)
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.quantities import parse_ceil, parse_milli
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.placement.node_policies import FRAGMENTATION
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.registry import Vendors

DEFAULT_POLICY = Policy()
"""HAMi's default policies: binpack for nodes, spread for cards."""

MAX_CONTAINERS = 512
"""Maximum number of containers of a pod, with or without a card.

No kubelet runs a pod of so many; an object of the API server has room for 50,000.
"""
MAX_CONTAINERS_WITH_CARDS = 64
"""Maximum number of containers of a pod that ask for cards.

HAMi has no such limit. Every step of a decision grows with their number, which a tenant chooses;
a pod of 64 containers is more than people run, and less than an object of the API server holds.
"""


def pod_request(pod: Json, vendors: Vendors, defaults: Policy = DEFAULT_POLICY) -> PodRequest:
    """Parse a pod's request: init containers first, then app containers, as in the spec.

    Raises: InvalidRequest naming container, resource or annotation, value and the expected value.
    """
    check_containers(pod, vendors)
    written = keys.limit_lengths(keys.annotations_of(pod))
    containers = tuple(
        ContainerRequest(
            name=str(container.get("name", "")),
            role=role,
            requests=_device_requests(container, vendors, written),
        )
        for role, container in containers_of(pod)
    )
    metadata = pod.get("metadata") or {}
    wanted = {request.vendor for container in containers for request in container.requests}
    # HAMi accepts a pod without a card before it reads policies (protocol 4.5, 1).
    policy = pod_policy(written, defaults) if wanted else defaults
    if wanted:
        PREEMPTION_DELAY.read(written)
        GROUP_MIN.read(written)
    return PodRequest(
        uid=PodUid(str(metadata.get("uid", ""))),
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or metadata.get("generateName") or ""),
        containers=containers,
        selections={v.name: v.select(written) for v in vendors if v.name in wanted},
        policy=policy,
        host=host_request(pod),
    )


def check_containers(pod: Json, vendors: Vendors) -> None:
    """Refuse a pod with too many containers, or too many that name our resources.

    Raises: InvalidRequest with their number and the limit.
    """
    containers = [container for _, container in containers_of(pod)]
    if len(containers) > MAX_CONTAINERS:
        raise too_many_containers(len(containers))
    if len(containers) <= MAX_CONTAINERS_WITH_CARDS:
        return
    asking = sum(_names_resource(container, vendors) for container in containers)
    if asking > MAX_CONTAINERS_WITH_CARDS:
        raise InvalidRequest(
            f"{asking} containers of the pod ask for cards: at most {MAX_CONTAINERS_WITH_CARDS} "
            "may; spread them over several pods"
        )


def too_many_containers(count: int) -> InvalidRequest:
    """Return the error for a pod with more than `MAX_CONTAINERS` containers."""
    return InvalidRequest(f"the pod has {count} containers: at most {MAX_CONTAINERS} are admitted")


def _names_resource(container: Json, vendors: Vendors) -> bool:
    return any(
        amounts.asks(container, resource)
        for vendor in vendors
        for resource in vendor.resources.all()
    )


def host_request(pod: Json) -> HostRequest:
    """Sum what the pod requests of its host, as kube-scheduler does.

    It is the greatest of each init container with the sidecars declared before it, and of all
    sidecars and app containers together. An amount that can't be read counts as none: the API
    server validates it, and here only a preference depends on it.
    """
    sidecars, together, highest = [0, 0], [0, 0], [0, 0]
    for role, container in containers_of(pod):
        own = (_amount_of(container, "cpu", parse_milli), _amount_of(container, "memory", _mib))
        for each, amount in enumerate(own):
            if role == "init":
                highest[each] = max(highest[each], sidecars[each] + amount)
                continue
            together[each] += amount
            if role == "sidecar":
                sidecars[each] += amount
    cpu_milli, memory_mib = map(max, highest, together)
    return HostRequest(cpu_milli=cpu_milli, memory_mib=memory_mib)


def _amount_of(container: Json, resource: str, read: Callable[[object], int]) -> int:
    resources = container.get("resources") or {}
    for part in ("requests", "limits"):
        given = resources.get(part)
        if isinstance(given, dict) and resource in given:
            try:
                return max(read(given[resource]), 0)
            except InvalidRequest:
                return 0
    return 0


def _mib(quantity: object) -> int:
    return -(-parse_ceil(quantity) // 2**20)


def wants_devices(pod: Json, vendors: Vendors) -> bool:
    """Return whether a container asks for a card, even in a malformed way."""
    return any(
        amounts.asks(container, resource)
        for vendor in vendors
        for resource in (vendor.resources.count, *vendor.resources.alone)
        for _, container in containers_of(pod)
    )


def _device_requests(
    container: Json, vendors: Vendors, annotations: Mapping[str, str]
) -> tuple[DeviceRequest, ...]:
    concerned = vendors.concerned_by(container)
    requests = (vendor.parse_request(container, annotations) for vendor in concerned)
    return tuple(request for request in requests if request is not None)


def pod_policy(annotations: Mapping[str, str], defaults: Policy = DEFAULT_POLICY) -> Policy:
    """Parse the policies and weights in the pod's annotations.

    Any node policy except `spread` and our `fragmentation` is binpack, as in HAMi; unknown gpu
    policies are kept and behave as spread. If a pod asks for `fragmentation` only of nodes, its
    cards are chosen by it, too.

    Raises: InvalidRequest if the weights are malformed.
    """
    node, gpu = NODE_POLICY.read(annotations), GPU_POLICY.read(annotations)
    if node == FRAGMENTATION and not gpu:
        gpu = (FRAGMENTATION,)
    return Policy(
        node=node or defaults.node,
        gpu=gpu or defaults.gpu,
        weights=SCORING_WEIGHTS.read(annotations) or defaults.weights,
        numa_first=NVIDIA_NUMA_BIND.read(annotations) or False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequests:
    """Parser of pods' requests with one configuration."""

    vendors: Vendors
    defaults: Policy
    """Policy of pods that name none."""

    def of(self, pod: JsonMapping) -> PodRequest:
        """Parse the pod's request. Raises: InvalidRequest."""
        return pod_request(dict(pod), self.vendors, self.defaults)

    def wants_devices(self, pod: JsonMapping) -> bool:
        """Return whether the pod asks for a card of a configured vendor."""
        return wants_devices(dict(pod), self.vendors)
