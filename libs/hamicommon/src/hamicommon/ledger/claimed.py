"""Slices by ResourceClaims that several containers or pods share. Pure.

Such a slice is one budget: it is counted for one of its holders.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hamicommon.domain.allocations import ClaimedSlice, ContainerGrant, DeviceShare, SliceKey


def mark_counted(
    claims: Sequence[ClaimedSlice], held: Collection[SliceKey]
) -> tuple[ClaimedSlice, ...]:
    """Mark as not counted the slices that already count for another pod."""
    return tuple(
        replace(each, counted=False) if each.counted and each.key in held else each
        for each in claims
    )


def without(
    containers: Sequence[ContainerGrant],
    claims: Sequence[ClaimedSlice],
    keys: Collection[SliceKey],
) -> tuple[ContainerGrant, ...]:
    """Remove the counted slices with these keys from the containers."""
    left = {container.index: list(container.shares) for container in containers}
    for each in claims:
        if each.counted and each.key in keys:
            shares = left[each.container]
            shares.remove(next(one for one in shares if _amounts(one) == _amounts(each.share)))
    return tuple(
        replace(container, shares=tuple(left[container.index])) for container in containers
    )


def _amounts(share: DeviceShare) -> tuple[object, ...]:
    return share.uuid, share.memory_mib, share.core_percent, share.slots
