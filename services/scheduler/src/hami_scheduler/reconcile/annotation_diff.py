"""Compare a pod's annotations with its row in the ledger. Pure.

Only lasting annotations are compared: the vendors' `allocated` keys, and the reservations of MIG
slices once our agent has reported the instances for them (HAMi's plugin writes those into the pod
itself). Device plugins consume `to-allocate` values and answer in `bind-phase`, as HAMi's protocol
defines (sheet 2.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.domain.ids import card_id
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import MIG_ALLOCATIONS, decode_pod_devices
from hamicommon.k8s.mig import MigReservation, decode_reservations
from hamicommon.vendors.interface.vendor import Vendor


def differing(
    allocation: Allocation, annotations: Mapping[str, str], vendors: Iterable[Vendor]
) -> dict[str, str]:
    """Return the annotations that the pod should have, where it has other values or none."""
    expected = {
        vendor.keys.allocated: _on_its_cards(
            allocation.annotations[vendor.keys.allocated], allocation.containers, vendor.name
        )
        for vendor in vendors
        if vendor.keys.allocated in allocation.annotations
    }
    different = {
        key: value for key, value in expected.items() if not _same(annotations.get(key, ""), value)
    }
    reserved = allocation.annotations.get(MIG_ALLOCATIONS, "")
    made = decode_reservations(reserved)
    if any(one.mig_uuid for one in made) and made != _reservations(annotations):
        different[MIG_ALLOCATIONS] = reserved
    return different


def misread(
    allocation: Allocation, written: Mapping[str, str], vendors: Iterable[Vendor]
) -> dict[str, str]:
    """Return annotations of the row that name other slices than the row has.

    `written` is what the vendors write for the row's slices. Which cards they are is not compared:
    the pod may have been moved since. A value of another form (JSON of some vendors) is left.
    """
    keys = [vendor.keys.allocated for vendor in vendors if vendor.keys.allocated in written]
    return {
        key: written[key]
        for key in keys
        if (wanted := _amounts(written[key])) is not None
        and _amounts(allocation.annotations.get(key, "")) != wanted
    }


def _amounts(text: str) -> list[list[tuple[int, int]]] | None:
    """Return MiB and cores of each container's slices; None if unreadable."""
    try:
        containers = decode_pod_devices(text)
    except InvalidRequest:
        return None
    found = [[(each.memory_mib, each.core_percent) for each in shares] for shares in containers]
    # HAMi loses the entries of containers without a card, and adds some at the end.
    return [shares for shares in found if shares] or None


def _reservations(annotations: Mapping[str, str]) -> tuple[MigReservation, ...]:
    """Return the pod's MIG reservations; empty if unreadable."""
    try:
        return decode_reservations(annotations.get(MIG_ALLOCATIONS, ""))
    except InvalidRequest:
        return ()


def _on_its_cards(text: str, containers: Iterable[ContainerGrant], vendor: str) -> str:
    """Return the value as first written, with the cards to which the pod was moved since.

    A value of another form (JSON of some vendors) has no cards that move, and stays.
    """
    pieces = text.split(";")
    written = [[one for one in piece.split(":") if one] for piece in pieces]
    held = [[s for s in one.shares if s.vendor == vendor] for one in containers]
    if [len(entries) for entries in written if entries] != [len(some) for some in held if some]:
        return text
    shares = iter([share for some in held for share in some])
    moved = []
    for entries in written:
        parts = []
        for entry in entries:
            uuid, comma, rest = entry.partition(",")
            if not comma:
                return text
            now = card_id(next(shares).uuid)
            parts.append(f"{uuid if uuid.startswith(now) else now},{rest}:")
        moved.append("".join(parts))
    return ";".join(moved)


def _same(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    try:
        pairs = zip_longest(decode_pod_devices(found), decode_pod_devices(wanted), fillvalue=())
    except InvalidRequest:
        return False
    # HAMi's plugins add empty containers at the end.
    return bool(found) and all(one == other for one, other in pairs)
