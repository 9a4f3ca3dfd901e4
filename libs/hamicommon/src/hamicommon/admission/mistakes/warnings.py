"""Warnings about requests that are odd but valid, shown at admission and by `explain`.

Each remark names the annotation or resource, its value and its effect (docs/explain.md has the
list). HAMi accepts all of these silently.
"""

from __future__ import annotations

from collections.abc import Iterator

from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.quantities import is_zero
from hamicommon.k8s.types import Json
from hamicommon.vendors.annotation_table import user_annotations
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.registry import Vendors


def remarks(pod: Json, vendors: Vendors) -> tuple[str, ...]:
    """Return all warnings about a pod that asks for cards, in a fixed order."""
    annotations = keys.annotations_of(pod)
    return (
        *(text for row in user_annotations(vendors) for text in row.remarks(annotations)),
        *_selections(annotations, vendors),
        *_twice(pod, vendors),
        *_no_memory(pod, vendors),
    )


def _selections(annotations: dict[str, str], vendors: Vendors) -> Iterator[str]:
    if not annotations:
        return
    for vendor in vendors:
        chosen = vendor.select(annotations)
        for what, wanted, unwanted in (
            ("uuid", chosen.use_uuids, chosen.avoid_uuids),
            ("type", chosen.use_types, chosen.avoid_types),
        ):
            both = [entry for entry in wanted if _is_excluded(entry, unwanted, what)]
            if both:
                yield (
                    f"card {what} {clip(', '.join(both))} is both wanted and unwanted by the pod's "
                    f"annotations for {vendor.name}: the unwanted wins, no such card is given"
                )


def _is_excluded(entry: str, unwanted: tuple[str, ...], what: str) -> bool:
    """Whether no card can match `entry` without matching `unwanted`: types match parts of names."""
    if what == "uuid":
        return entry != "" and entry in unwanted
    return entry != "" and any(other and other.upper() in entry.upper() for other in unwanted)


def _twice(pod: Json, vendors: Vendors) -> Iterator[str]:
    for _, container in containers_of(pod):
        resources = container.get("resources") or {}
        named = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        for vendor in vendors.concerned_by(container):
            amount, percent = vendor.resources.memory, vendor.resources.memory_percent
            if amount and percent and _is_nonzero(named, amount) and _is_nonzero(named, percent):
                yield (
                    f"container {container.get('name', '')!r} asks for memory twice, {amount} "
                    f"{named[amount]} and {percent} {named[percent]}: {amount} wins"
                )


def _no_memory(pod: Json, vendors: Vendors) -> Iterator[str]:
    """Warn of memory 0: HAMi reads it as not given, so the pod gets the whole card's memory."""
    annotations = keys.annotations_of(pod)
    for _, container in containers_of(pod):
        for vendor in vendors.concerned_by(container):
            memory = vendor.resources.memory
            if not is_zero(amounts.find(container, memory)):
                continue
            try:
                asked = vendor.parse_request(container, annotations)
            except InvalidRequest:
                continue
            if asked is not None and (asked.memory_mib or asked.memory_percent == 100):
                granted = f"{asked.memory_mib} MiB" if asked.memory_mib else "the whole memory"
                yield (
                    f"container {container.get('name', '')!r}: {memory} 0 means not given: "
                    f"{granted} of each card is granted; write the MiB that it needs"
                )


def _is_nonzero(named: Json, resource: str) -> bool:
    return str(named.get(resource, "0")) != "0"
