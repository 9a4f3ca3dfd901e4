"""Device ids for the kubelet, `<GPU-uuid>-<replica>`, and preferences among them.

A card is advertised `slots` times. Which replica a container holds carries no meaning beyond its
card; the codec of the text form is here and nowhere else (protocol 5.4, 5.7, 5.9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hamicommon.domain.ids import GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ReplicaId:
    """Id of one slot of a card."""

    uuid: GpuUuid
    replica: int

    def __str__(self) -> str:
        return f"{self.uuid}-{self.replica}"


def replicas_of(uuid: GpuUuid, slots: int) -> tuple[ReplicaId, ...]:
    """Return all slots of a card, from 0."""
    return tuple(ReplicaId(uuid=uuid, replica=number) for number in range(slots))


def card_of(device_id: str) -> GpuUuid:
    """Return the card of a device id; other ids name a card or MIG device themselves."""
    if "::" in device_id:
        return GpuUuid(device_id.partition("::")[0])
    head, _, tail = device_id.rpartition("-")
    # A bare `GPU-8-4-4-4-12` has five dashes; its last group may be all digits.
    if device_id.count("-") == 6 and tail.isascii() and tail.isdigit():
        return GpuUuid(head)
    return GpuUuid(device_id)


def preferred_ids(
    cards: Sequence[GpuUuid], *, available: Iterable[str], must_include: Sequence[str], size: int
) -> tuple[str, ...]:
    """Return the ids to prefer: required ones, free slots of granted cards, then packed ones.

    Where a granted card has no free slot (the kubelet counts a pod that we know to be gone), the
    fullest other cards come first, each once before any comes twice: empty ones stay for who needs
    them. At most `size`.
    """
    chosen = list(must_include)[:size]
    wanted = list(cards)
    for device_id in chosen:
        if card_of(device_id) in wanted:
            wanted.remove(card_of(device_id))
    free = sorted(set(available) - set(chosen), key=_natural)
    for card in wanted:
        if len(chosen) == size:
            break
        pick = next((device_id for device_id in free if card_of(device_id) == card), None)
        if pick is not None:
            chosen.append(pick)
            free.remove(pick)
    return (*chosen, *_pack_ids(free, taken=chosen, size=size - len(chosen)))


def _pack_ids(free: Sequence[str], *, taken: Iterable[str], size: int) -> list[str]:
    left = Counter(card_of(device_id) for device_id in free)
    times = Counter(card_of(device_id) for device_id in taken)
    rest, chosen = list(free), list[str]()
    while rest and len(chosen) < size:
        pick = min(rest, key=lambda i: (times[card_of(i)], left[card_of(i)], _natural(i)))
        rest.remove(pick)
        times[card_of(pick)] += 1
        chosen.append(pick)
    return chosen


def _natural(device_id: str) -> tuple[str, int, str]:
    head, _, tail = device_id.rpartition("-")
    return (head, int(tail), "") if tail.isascii() and tail.isdigit() else (device_id, -1, "")
