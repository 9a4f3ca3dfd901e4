"""Slices added up with plain loops, for the reference model: no sum of the service's own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, DeviceShare


def footprint(containers: Iterable[ContainerGrant]) -> dict[str, tuple[int, int, int]]:
    """(slots, MiB, percent) per card: init containers one after the other, the others at once.

    No pod of the simulation has sidecars.
    """
    result: dict[str, tuple[int, int, int]] = {}
    apps: dict[str, list[int]] = {}
    for container in containers:
        for share in container.shares:
            if container.role == "app":
                together = apps.setdefault(share.uuid, [0, 0, 0])
                together[0] += share.slots
                together[1] += share.memory_mib
                together[2] += share.core_percent
            else:
                old = result.get(share.uuid, (0, 0, 0))
                result[share.uuid] = (
                    max(old[0], share.slots),
                    max(old[1], share.memory_mib),
                    max(old[2], share.core_percent),
                )
    for uuid, together in apps.items():
        first = result.get(uuid, (0, 0, 0))
        result[uuid] = (
            max(first[0], together[0]),
            max(first[1], together[1]),
            max(first[2], together[2]),
        )
    return result


def onto(container: ContainerGrant, cards: Sequence[Any] | None) -> ContainerGrant | None:
    """The container on these cards; None when they are not as many as its slices."""
    if cards is None:
        return container
    if len(cards) != len(container.shares):
        return None
    left = list(cards)
    stays = [share.uuid in left and not left.remove(share.uuid) for share in container.shares]
    return replace(
        container,
        shares=tuple(
            share if stay else replace(share, uuid=left.pop(0))
            for share, stay in zip(container.shares, stays, strict=True)
        ),
    )


def slices_of(shares: Iterable[DeviceShare]) -> list[tuple[str, int, int]]:
    """(card, MiB, percent) of each, in order."""
    return sorted((share.uuid, share.memory_mib, share.core_percent) for share in shares)
