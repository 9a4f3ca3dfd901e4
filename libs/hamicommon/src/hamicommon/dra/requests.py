"""Compute the amounts that a pod requests by ResourceClaims that are not allocated yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hamicommon.dra.devices import CORES, DRIVER, MEMORY, mib_of_bytes
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_ceil
from hamicommon.k8s.types import JsonMapping

DEVICE_CLASS = DRIVER
"""Name of the DeviceClass for our cards (`k8s/components/dra/device-class.yaml`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAmounts:
    """Amounts that claims request; where requests differ, the largest of each."""

    card_count: int
    memory_mib: int
    """Memory per card in MiB; 0: no request names an amount."""
    whole_memory: bool
    """Whether a request names no amount, and so gets all free memory of a card."""
    core_percent: int


def is_ours(claim: JsonMapping) -> bool:
    """Return whether a request of the claim is for a card of ours."""
    return any(
        part.get("deviceClassName") == DEVICE_CLASS
        for request in _requests(claim)
        for part in (request.get("exactly") or {}, *(request.get("firstAvailable") or ()))
    )


def amounts_of(claims: Iterable[JsonMapping]) -> ClaimedAmounts | None:
    """Return the amounts that the claims request of our cards.

    None where a request does not state them: it has alternatives, or asks for all cards.
    """
    wanted = [request.get("exactly") or {} for claim in claims for request in _requests(claim)]
    ours = [each for each in wanted if each.get("deviceClassName") == DEVICE_CLASS]
    if not ours or {} in wanted or any(each.get("allocationMode") == "All" for each in ours):
        return None
    try:
        sizes = [_capacity(each) for each in ours]
    except InvalidRequest:
        return None
    memories_mib = [mib_of_bytes(size.get(MEMORY, 0)) for size in sizes]
    return ClaimedAmounts(
        card_count=sum(int(each.get("count") or 1) for each in ours),
        memory_mib=max(memories_mib),
        whole_memory=0 in memories_mib,
        core_percent=max(size.get(CORES, 0) for size in sizes),
    )


def _capacity(exactly: JsonMapping) -> dict[str, int]:
    """Return memory and cores of a request. Raises: InvalidRequest."""
    asked = (exactly.get("capacity") or {}).get("requests") or {}
    return {key.removeprefix(f"{DRIVER}/"): parse_ceil(amount) for key, amount in asked.items()}


def _requests(claim: JsonMapping) -> Sequence[JsonMapping]:
    return (claim["spec"].get("devices") or {}).get("requests") or ()
