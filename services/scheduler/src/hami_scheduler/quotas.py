"""What slices count in a namespace's ResourceQuota (`limits.<memory or core resource>`).

Pure. The amounts are the effective footprint per card (max of init and app), summed over cards, in
MiB and percent; HAMi's quotas count the same (protocol sheet 12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, footprints
from hamicommon.placement.rules import NODE_UNREGISTERED
from hamicommon.vendors.registry import Vendors

_PREFIX = "limits."


def quota_amounts(containers: Sequence[ContainerGrant], vendors: Vendors) -> dict[str, int]:
    """Resource name -> amount; resources of which nothing is taken are left out."""
    vendor_of = {share.uuid: share.vendor for c in containers for share in c.shares}
    amounts: dict[str, int] = {}
    for card in footprints(containers):
        names = vendors[vendor_of[card.uuid]].resources
        for name, amount in ((names.memory, card.memory_mib), (names.core, card.core_percent)):
            if name and amount:
                amounts[name] = amounts.get(name, 0) + amount
    return amounts


def quota_limits(quota: Mapping[str, Any], vendors: Vendors) -> dict[str, int]:
    """Resource name -> limit that one ResourceQuota object sets; only whole numbers count."""
    hard = (quota.get("spec") or {}).get("hard") or {}
    limits: dict[str, int] = {}
    for vendor in vendors:
        names = vendor.resources
        for name in (names.memory, names.core):
            text = str(hard.get(f"{_PREFIX}{name}", ""))
            if name and text.isdecimal():
                limits[name] = int(text)
    return limits


def quota_reason(cards: int) -> str:
    """The reason of a node whose every card is refused because of the quota."""
    return f"{cards}/{cards} ResourceQuotaNotFit" if cards else NODE_UNREGISTERED
