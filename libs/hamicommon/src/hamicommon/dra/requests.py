"""What a pod asks for by its ResourceClaims, before anything is allocated to them. Pure.

A claim has what limits have: how many cards, how much memory, which share of the cores. Policies
and selections of cards are the pod's annotations, as with limits, so both ways are decided alike.
What a claim can ask of kube-scheduler and not of the ledger (CEL selectors, constraints,
alternatives) is refused with a sentence, never passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from hamicommon.domain.requests import ContainerRequest, DeviceRequest
from hamicommon.dra.claims import (
    VENDOR,
    AllocatedDevice,
    ContainerClaims,
    container_claims,
    holders,
)
from hamicommon.dra.devices import CORES, DRIVER, MEMORY, PERCENT, SLOTS, mib_of_bytes
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_ceil
from hamicommon.k8s.types import JsonMapping

DEVICE_CLASS = DRIVER
"""The DeviceClass whose requests are ours (`k8s/components/dra/device-class.yaml`)."""
MOST_MIB = 2**31 - 1
MOST_CARDS = 32
"""Results that a claim may have (resource.k8s.io/v1, AllocationResultsMaxSize)."""
_REFUSED = ("selectors", "tolerations", "adminAccess")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of each of its cards a request wants."""

    memory_mib: int
    memory_percent: int | None
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedSlices:
    """The slices of a pod that are to be allocated to its claims."""

    containers: tuple[ContainerClaims, ...]
    """In the order of the spec; their devices are numbered by `share_id`, and no cards yet."""
    requests: tuple[ContainerRequest, ...]
    """The same as the placement engine takes them: slices that containers have in turn are their
    holder's."""


def is_ours(claim: JsonMapping) -> bool:
    """Whether some request of the claim is for a card of ours."""
    return any(
        part.get("deviceClassName") == DEVICE_CLASS
        for request in _requests(claim)
        for part in (request.get("exactly") or {}, *(request.get("firstAvailable") or ()))
    )


def claimed_slices(pod: JsonMapping, claims: Mapping[str, JsonMapping]) -> ClaimedSlices:
    """What the pod's containers want of `claims`, which are ours, by `claim_names`' keys.

    Raises: InvalidRequest with claim, request and what would be right.
    """
    sizes: dict[tuple[str, str], Size] = {}
    devices: dict[str, list[AllocatedDevice]] = {}
    for key, claim in claims.items():
        devices[key] = list(_wanted(claim, sizes))
    containers = container_claims(pod, devices)
    used = {key for container in containers for key in container.keys}
    for device in (each for some in devices.values() for each in some):
        if device.key not in used:
            raise InvalidRequest(
                f"request {device.request} of claim {device.claim} is used by no container; name "
                "it in a container's resources.claims"
            )
    holding = {container.index for container in holders(containers)}
    return ClaimedSlices(
        containers=containers,
        requests=tuple(
            ContainerRequest(
                name=container.name,
                # The pod has an init container's slices to its end.
                role="app" if container.devices else container.role,
                requests=_of_container(container, sizes) if container.index in holding else (),
            )
            for container in containers
        ),
    )


def _of_container(
    container: ContainerClaims, sizes: Mapping[tuple[str, str], Size]
) -> tuple[DeviceRequest, ...]:
    wanted = {sizes[device.claim_uid, device.request] for device in container.devices}
    if len(wanted) > 1:
        names = ", ".join(sorted({device.request for device in container.devices}))
        raise InvalidRequest(
            f"container {container.name} uses requests of different sizes ({names}); the slices of "
            "one container have one size"
        )
    size = wanted.pop()
    return (
        DeviceRequest(
            vendor=VENDOR,
            count=len(container.devices),
            memory_mib=size.memory_mib,
            memory_percent=size.memory_percent,
            core_percent=size.core_percent,
        ),
    )


def _wanted(claim: JsonMapping, sizes: dict[tuple[str, str], Size]) -> Iterator[AllocatedDevice]:
    metadata, devices = claim["metadata"], claim["spec"].get("devices") or {}
    where = f"claim {metadata['name']}"
    if devices.get("constraints"):
        raise InvalidRequest(
            f"{where} has constraints, which the ledger does not know; slices of one container are "
            "on different cards, and annotations of the pod choose among them"
        )
    percents = _percents(claim, where)
    for request in _requests(claim):
        exactly = request.get("exactly")
        name = f"request {request['name']} of {where}"
        if not exactly:
            raise InvalidRequest(f"{name} has alternatives (firstAvailable): one is wanted")
        _check(exactly, name)
        size = _size(exactly, percents.get(request["name"]), name)
        sizes[str(metadata["uid"]), str(request["name"])] = size
        count = int(exactly.get("count") or 1)
        if count > MOST_CARDS:
            raise InvalidRequest(f"{name} asks for {count} cards: {MOST_CARDS} at most")
        for number in range(count):
            yield AllocatedDevice(
                claim_uid=str(metadata["uid"]),
                claim=str(metadata["name"]),
                request=str(request["name"]),
                pool="",
                device="",
                share_id=str(number),
                memory_mib=size.memory_mib,
                core_percent=size.core_percent,
                slots=1,
            )


def _check(exactly: JsonMapping, name: str) -> None:
    if exactly.get("deviceClassName") != DEVICE_CLASS:
        raise InvalidRequest(
            f"{name} is for class {exactly.get('deviceClassName')}: our cards are in claims of "
            "their own"
        )
    for field in _REFUSED:
        if exactly.get(field):
            raise InvalidRequest(
                f"{name} has {field}, which the ledger does not know; annotations of the pod "
                "choose cards (docs/dra.md)"
            )
    mode = exactly.get("allocationMode") or "ExactCount"
    if mode != "ExactCount":
        raise InvalidRequest(f"{name} has allocationMode {mode}: ExactCount is wanted")


def _size(exactly: JsonMapping, percent: int | None, name: str) -> Size:
    asked = {
        key.removeprefix(f"{DRIVER}/"): parse_ceil(amount)
        for key, amount in ((exactly.get("capacity") or {}).get("requests") or {}).items()
    }
    unknown = asked.keys() - {MEMORY, CORES, SLOTS}
    if unknown:
        raise InvalidRequest(
            f"{name} asks for capacity {min(unknown)}: {MEMORY}, {CORES} or {SLOTS} are known"
        )
    memory_mib, cores = mib_of_bytes(asked.get(MEMORY, 0)), asked.get(CORES, 0)
    if MEMORY in asked and not 0 < memory_mib <= MOST_MIB:
        raise InvalidRequest(f"{name} asks for {memory_mib} MiB of memory: at least 1 is wanted")
    if not 0 <= cores <= 100:
        raise InvalidRequest(f"{name} asks for {cores} cores: percent of a card, 0 to 100")
    if asked.get(SLOTS, 1) > 1:
        raise InvalidRequest(
            f"{name} asks for {asked[SLOTS]} slots: a slice has one; cores 100 keep a card for one"
        )
    return Size(
        memory_mib=memory_mib,
        # Beside an amount the percentage counts for the order of cards alone, as with limits.
        memory_percent=percent if memory_mib else percent or 100,
        core_percent=cores,
    )


def _percents(claim: JsonMapping, where: str) -> dict[str, int]:
    """By request, from the configuration for our driver."""
    found: dict[str, int] = {}
    for entry in _configuration(claim):
        parameters = entry["opaque"].get("parameters") or {}
        wrong = sorted(set(parameters) - {PERCENT})
        value = parameters.get(PERCENT)
        if wrong or not _is_percent(value):
            what = f"has {wrong[0]}" if wrong else f"has {PERCENT} {value}"
            raise InvalidRequest(
                f"the configuration of {where} for {DRIVER} {what}: "
                f"{PERCENT} with a number from 1 to 100 is wanted"
            )
        names = entry.get("requests") or [request["name"] for request in _requests(claim)]
        found |= dict.fromkeys(names, value)
    return found


def _is_percent(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100


def _configuration(claim: JsonMapping) -> Iterable[JsonMapping]:
    entries: Sequence[JsonMapping] = (claim["spec"].get("devices") or {}).get("config") or ()
    return [entry for entry in entries if (entry.get("opaque") or {}).get("driver") == DRIVER]


def _requests(claim: JsonMapping) -> Sequence[JsonMapping]:
    return (claim["spec"].get("devices") or {}).get("requests") or ()
