"""`status.allocation` of a ResourceClaim, as the ledger writes it for a grant. Pure.

The same grant gives the same text, whichever replica writes it and how often: share ids are derived
from it.
kube-scheduler honours an allocation that is there. It must have `allocationTimestamp`, which
kube-scheduler 1.36 would add, and an allocation can't change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import NAMESPACE_OID, uuid5

from hamicommon.domain.allocations import (
    Allocation,
    ClaimedSlice,
    ContainerGrant,
    DeviceShare,
    SliceKey,
)
from hamicommon.domain.ids import PodUid
from hamicommon.dra.claims import (
    AllocatedDevice,
    ContainerClaims,
    claimed_slices_of,
    holders,
)
from hamicommon.dra.devices import CORES, DRIVER, MEMORY, SLOTS, device_name
from hamicommon.errors import Conflict
from hamicommon.k8s.types import Json, JsonMapping


def share_id(allocation_id: str, device: AllocatedDevice) -> str:
    """Of one slice of a grant."""
    return _share_id(allocation_id, device.key)


def _share_id(allocation_id: str, key: SliceKey) -> str:
    return str(uuid5(NAMESPACE_OID, "/".join((allocation_id, *key))))


def evidence_of(
    allocation_id: str, containers: Iterable[ContainerClaims], cards: Mapping[int, Sequence[str]]
) -> list[Json]:
    """For the history: which claims the grant serves; `cards` are the containers' by index."""
    found = []
    for container in holders(containers):
        for device, card in zip(container.devices, cards[container.index], strict=True):
            found.append(
                {
                    "container": container.name,
                    "claim": device.claim,
                    "claim_uid": device.claim_uid,
                    "request": device.request,
                    "share_id": share_id(allocation_id, device),
                    "device": device_name(card),
                }
            )
    return found


def led_slices(
    allocation_id: str, containers: Sequence[ContainerClaims], granted: Iterable[ContainerGrant]
) -> tuple[ClaimedSlice, ...]:
    """What each container uses of a grant that the ledger allocates; `granted` are its containers
    with their cards."""
    given = {container.index: container.shares for container in granted}
    shares = {
        device.key: share
        for container in holders(containers)
        for device, share in zip(container.devices, given[container.index], strict=True)
    }
    return tuple(
        replace(
            each,
            share_id=_share_id(allocation_id, each.key),
        )
        for each in claimed_slices_of(containers, shares)
    )


def allocated_status(
    claim: JsonMapping,
    grant: Allocation,
    containers: Iterable[ContainerClaims],
    *,
    pool: str,
) -> Json:
    """`status.allocation` and `status.reservedFor` of one of the pod's claims.

    `containers` are those that the grant was made for. Raises: Conflict when it is another pod's,
    or one of other slices.
    """
    uid = str(claim["metadata"]["uid"])
    results = [
        _result(grant, device, share, pool)
        for device, share in _placed(grant, containers)
        if device.claim_uid == uid
    ]
    if not results:
        raise Conflict(f"the pod's grant has no slices for claim {claim['metadata']['name']}")
    devices: Json = {"results": results}
    configuration = (claim["spec"].get("devices") or {}).get("config") or []
    if configuration:
        devices["config"] = [{"source": "FromClaim", **entry} for entry in configuration]
    field = {"key": "metadata.name", "operator": "In", "values": [grant.node]}
    return {
        "allocation": {
            "devices": devices,
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            "allocationTimestamp": grant.reserved_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
        "reservedFor": [{"resource": "pods", "name": grant.pod_name, "uid": grant.pod_uid}],
    }


def is_allocated(claim: JsonMapping) -> bool:
    """Whether anything is allocated to it."""
    return bool((claim.get("status") or {}).get("allocation"))


def is_of_grant(claim: JsonMapping, grant: Allocation) -> bool:
    """Whether what is allocated to the claim is of this grant: by its share ids."""
    ids = {result.get("shareID") for result in claim["status"]["allocation"]["devices"]["results"]}
    uid = str(claim["metadata"]["uid"])
    # The numbers of a request's slices; a grant has no more of them than slices.
    most = sum(len(container.shares) for container in grant.containers)
    requests = {
        str(result["request"]) for result in claim["status"]["allocation"]["devices"]["results"]
    }
    known = {
        str(uuid5(NAMESPACE_OID, "/".join((grant.id, uid, request, str(number)))))
        for request in requests
        for number in range(most)
    }
    return ids <= known


def held_by_others(claim: JsonMapping, uid: PodUid) -> bool:
    """Whether another pod than this one has reserved the claim."""
    reserved = (claim.get("status") or {}).get("reservedFor") or []
    return any(one["uid"] != uid for one in reserved)


def _placed(
    grant: Allocation, containers: Iterable[ContainerClaims]
) -> list[tuple[AllocatedDevice, DeviceShare]]:
    given = {container.index: container.shares for container in grant.containers}
    pairs: list[tuple[AllocatedDevice, DeviceShare]] = []
    for container in holders(containers):
        shares = given.get(container.index, ())
        if len(shares) != len(container.devices):
            raise Conflict(f"the pod's grant has other slices for container {container.name}")
        pairs.extend(zip(container.devices, shares, strict=True))
    return pairs


def _result(grant: Allocation, device: AllocatedDevice, share: DeviceShare, pool: str) -> Json:
    return {
        "request": device.request,
        "driver": DRIVER,
        "pool": pool,
        "device": device_name(share.uuid),
        "shareID": share_id(grant.id, device),
        "consumedCapacity": {
            MEMORY: f"{share.memory_mib}Mi",
            CORES: str(share.core_percent),
            SLOTS: str(share.slots),
        },
    }
