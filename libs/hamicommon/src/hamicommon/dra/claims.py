"""Find which containers of a pod get which slices by the pod's ResourceClaims.

All input comes from objects that only schedulers and the API server write (`status.allocation`,
`status.reservedFor`, `status.resourceClaimStatuses`) and from the pod's spec, which can't change.
Supported are pods with several claims, several requests in a claim, init containers, extended
resources that a DeviceClass maps, and claims that several pods or containers share: they have one
budget (docs/dra.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from hamicommon.domain.allocations import ClaimedSlice, ContainerGrant, DeviceShare, SliceKey
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.domain.requests import Role
from hamicommon.dra.devices import CORES, DRIVER, MEMORY, SLOTS, mib_of_bytes
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.quantities import parse_ceil
from hamicommon.k8s.types import JsonMapping

VENDOR = "NVIDIA"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice:
    """One result of a claim's allocation that is a card of ours."""

    claim_uid: str
    claim: str
    request: str
    """Name of the request, or `request/subrequest` if it lists alternatives."""
    pool: str
    device: str
    share_id: str
    memory_mib: int
    core_percent: int
    slots: int

    @property
    def key(self) -> SliceKey:
        """Key of this result, unique among all results of all claims."""
        return self.claim_uid, self.request, self.share_id or self.device

    @property
    def main_request(self) -> str:
        """Return the request's name without the subrequest; containers and the kubelet use it."""
        return self.request.partition("/")[0]

    def serves(self, request: str | None) -> bool:
        """Return whether a container that names this request or only its claim gets the device."""
        return request is None or self.main_request == request


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerClaims:
    """Devices that one container gets by its pod's claims."""

    index: int
    name: str
    role: Role
    devices: tuple[AllocatedDevice, ...]

    @property
    def keys(self) -> frozenset[SliceKey]:
        """Return the keys of the slices."""
        return frozenset(device.key for device in self.devices)


def claim_path(namespace: str, name: str) -> str:
    """Return the API server's path of a claim."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


def claim_names(pod: JsonMapping) -> dict[str, str]:
    """Return the pod's claims: name in the pod's spec -> name of the ResourceClaim.

    Raises: NotFound.

    A claim that is made from a template gets its name in the pod's status; until then it has none.
    """
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    made = {one["name"]: one.get("resourceClaimName") for one in statuses}
    names: dict[str, str] = {}
    for entry in (pod.get("spec") or {}).get("resourceClaims") or []:
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        if name:
            names[entry["name"]] = str(name)
        elif entry["name"] not in made:
            raise NotFound(f"claim {entry['name']} of the pod is not made from its template yet")
    extended = _extended_claim_status(pod).get("resourceClaimName")
    if extended:
        # No entry of a spec has a slash in its name.
        names[f"{extended}/"] = str(extended)
    return names


def pods_of(claim: JsonMapping) -> list[JsonMapping]:
    """Return `name` and `uid` of the pods that the claim is reserved for."""
    reserved = (claim.get("status") or {}).get("reservedFor") or []
    return [one for one in reserved if one["resource"] == "pods"]


def is_held_by_others(claim: JsonMapping, uid: PodUid) -> bool:
    """Return whether the claim is reserved for anything but this pod."""
    reserved = (claim.get("status") or {}).get("reservedFor") or []
    return any(one["uid"] != uid for one in reserved)


def allocated_devices(claim: JsonMapping, pod_uid: PodUid) -> tuple[AllocatedDevice, ...]:
    """Return the claim's allocated devices that are cards of ours.

    Raises: NotFound when nothing is allocated to this pod, InvalidRequest when a result does not
    state what of the card it takes.
    """
    metadata, status = claim["metadata"], claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    ours = [result for result in results if result["driver"] == DRIVER]
    if not ours:
        return ()
    name = f"claim {metadata['namespace']}/{metadata['name']}"
    if pod_uid not in {one["uid"] for one in pods_of(claim)}:
        raise NotFound(f"{name} is not reserved for the pod")
    return tuple(_allocated_device(metadata, result, name) for result in ours)


def _allocated_device(metadata: JsonMapping, result: JsonMapping, name: str) -> AllocatedDevice:
    consumed = {
        key.removeprefix(f"{DRIVER}/"): amount
        for key, amount in (result.get("consumedCapacity") or {}).items()
    }
    if MEMORY not in consumed:
        raise InvalidRequest(
            f"{name}: device {result['device']} is allocated without consumedCapacity.{MEMORY}; "
            "slices by claims need Kubernetes 1.36 or newer"
        )
    return AllocatedDevice(
        claim_uid=str(metadata["uid"]),
        claim=str(metadata["name"]),
        request=str(result["request"]),
        pool=str(result["pool"]),
        device=str(result["device"]),
        share_id=str(result.get("shareID") or ""),
        memory_mib=mib_of_bytes(parse_ceil(consumed[MEMORY])),
        core_percent=parse_ceil(consumed.get(CORES, "0")),
        slots=max(parse_ceil(consumed.get(SLOTS, "1")), 1),
    )


def container_claims(
    pod: JsonMapping, devices: Mapping[str, Sequence[AllocatedDevice]]
) -> tuple[ContainerClaims, ...]:
    """Return each container of the pod, in the order of its spec, with the devices that it gets.

    `devices` are those of each claim by `claim_names`' keys. Raises: InvalidRequest when a
    container has a part of another's slices: all slices of a container are one description to the
    runtime, with one limits directory and account.
    """
    extended = _extended_claim_status(pod)
    found = tuple(
        ContainerClaims(
            index=index,
            name=str(container["name"]),
            role=role,
            devices=tuple(_unique(_named_by(container, devices, extended))),
        )
        for index, (role, container) in enumerate(containers_of(pod))
    )
    for one, other in combinations([each for each in found if each.devices], 2):
        shared = one.keys & other.keys
        if shared and one.keys != other.keys:
            device = next(device for device in one.devices if device.key in shared)
            raise InvalidRequest(
                f"containers {one.name} and {other.name} both use request {device.request} of "
                f"claim {device.claim}, and not the same otherwise; let them use the same requests,"
                " or give each one of its own"
            )
    return found


def holders(containers: Iterable[ContainerClaims]) -> tuple[ContainerClaims, ...]:
    """Return for each set of shared slices the one container for which they count.

    Of those that have it in turn or together, the first sidecar or app container, otherwise the
    first.
    """
    found: dict[frozenset[SliceKey], ContainerClaims] = {}
    for container in containers:
        known = found.get(container.keys)
        first = known is None or (known.role == "init" and container.role != "init")
        if container.devices and first:
            found[container.keys] = container
    return tuple(found.values())


def claimed_slices_of(
    containers: Sequence[ContainerClaims], shares: Mapping[SliceKey, DeviceShare]
) -> tuple[ClaimedSlice, ...]:
    """Return the slices that each container uses; a shared slice counts for one container.

    `shares` are the slices' by key.
    """
    holding = {container.index for container in holders(containers)}
    return tuple(
        ClaimedSlice(
            container=container.index,
            position=position,
            claim_uid=device.claim_uid,
            claim=device.claim,
            request=device.request,
            share_id=device.share_id or device.device,
            share=shares[device.key],
            counted=container.index in holding,
        )
        for container in containers
        for position, device in enumerate(container.devices)
    )


def _named_by(
    container: JsonMapping,
    devices: Mapping[str, Sequence[AllocatedDevice]],
    extended: JsonMapping,
) -> Iterator[AllocatedDevice]:
    for named in (container.get("resources") or {}).get("claims") or []:
        for device in devices.get(named["name"], ()):
            if device.serves(named.get("request")):
                yield device
    for mapping in extended.get("requestMappings") or []:
        if mapping["containerName"] == container["name"]:
            for device in devices.get(f"{extended['resourceClaimName']}/", ()):
                if device.serves(mapping["requestName"]):
                    yield device


def _unique(devices: Iterable[AllocatedDevice]) -> Iterator[AllocatedDevice]:
    seen = set()
    for device in devices:
        if device.key not in seen:
            seen.add(device.key)
            yield device


def _extended_claim_status(pod: JsonMapping) -> JsonMapping:
    return (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}


def granted_shares(
    containers: Iterable[ContainerClaims], cards: Mapping[str, GpuUuid]
) -> dict[SliceKey, DeviceShare]:
    """Return the slices of cards that the claims amount to, by key.

    `cards` are the node's by their device names. Raises: NotFound when a device is no card of the
    node.
    """
    return {
        device.key: _share(device, cards)
        for container in containers
        for device in container.devices
    }


def granted_containers(
    containers: Sequence[ContainerClaims], shares: Mapping[SliceKey, DeviceShare]
) -> tuple[ContainerGrant, ...]:
    """Return the slices that count for each container; shared ones count for one of them.

    Init containers count as app containers do: the pod has their slices to its end.
    """
    holding = {container.index for container in holders(containers)}
    return tuple(
        ContainerGrant(
            index=container.index,
            name=container.name,
            role="app" if container.devices else container.role,
            shares=tuple(
                shares[device.key] for device in container.devices if container.index in holding
            ),
        )
        for container in containers
    )


def _share(device: AllocatedDevice, cards: Mapping[str, GpuUuid]) -> DeviceShare:
    uuid = cards.get(device.device)
    if uuid is None:
        raise NotFound(f"device {device.device} of claim {device.claim} is not a card of this node")
    return DeviceShare(
        uuid=uuid,
        vendor=VENDOR,
        memory_mib=device.memory_mib,
        core_percent=device.core_percent,
        slots=device.slots,
    )
