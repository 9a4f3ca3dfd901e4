"""What is odd about a pod's request, without being wrong: shown at admission and by explain.

Each remark names the annotation or resource, the value, and what is done with it (docs/explain.md
has the list). HAMi takes all of these in silence.
"""

from __future__ import annotations

from collections.abc import Iterator

from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.quantities import is_zero
from hamicommon.k8s.types import Json
from hamicommon.vendors.ascend.ascend import MODE_ANNOTATION as VNPU_MODE
from hamicommon.vendors.ascend.fit import HAMI_CORE as VNPU_SOFT
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.registry import Vendors

NODE_POLICIES = ("binpack", "spread", "fragmentation")
CARD_MODES = ("hami-core", "mig", "mps")
GO_TRUE = ("1", "t", "T", "TRUE", "true", "True")
GO_FALSE = ("0", "f", "F", "FALSE", "false", "False")
CARD_POLICIES = ("binpack", "spread", "topology-aware", "mutex", "numa", "fragmentation")


def one_of(names: tuple[str, ...]) -> str:
    """`a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def remarks(pod: Json, vendors: Vendors) -> tuple[str, ...]:
    """All remarks about a pod that asks for cards, in a fixed order."""
    annotations = keys.annotations_of(pod)
    return (
        *_policies(annotations),
        *_modes(annotations),
        *_selections(annotations, vendors),
        *_twice(pod, vendors),
        *_no_memory(pod, vendors),
    )


def _policies(annotations: dict[str, str]) -> Iterator[str]:
    node = annotations.get(keys.NODE_POLICY, "").strip()
    if node and node not in NODE_POLICIES:
        yield (
            f"annotation {keys.NODE_POLICY} is '{clip(node)}': {one_of(NODE_POLICIES)} is "
            "wanted; it is taken as binpack"
        )
    for entry in keys.split_list(annotations.get(keys.GPU_POLICY, "")):
        if entry and entry not in CARD_POLICIES:
            yield (
                f"annotation {keys.GPU_POLICY} has '{clip(entry)}': a comma list of "
                f"{', '.join(CARD_POLICIES)} is wanted; the unknown entry is left out, and "
                "without another one it is taken as spread"
            )


def _modes(annotations: dict[str, str]) -> Iterator[str]:
    bind = annotations.get(keys.NVIDIA_NUMA_BIND, "")
    if bind and bind not in (*GO_TRUE, *GO_FALSE):
        yield (
            f"annotation {keys.NVIDIA_NUMA_BIND} is '{clip(bind)}': true or false is wanted; "
            "it is taken as false"
        )
    mode = annotations.get(keys.NVIDIA_MODE, "")
    if mode and not any(known in mode for known in CARD_MODES):
        yield (
            f"annotation {keys.NVIDIA_MODE} is '{clip(mode)}': {', '.join(CARD_MODES)} or a list "
            "of them is wanted; no card of another mode is given"
        )
    soft = annotations.get(VNPU_MODE, "")
    if soft and soft != VNPU_SOFT:
        yield f"annotation {VNPU_MODE} is '{clip(soft)}': {VNPU_SOFT} is wanted; it is left out"


def _selections(annotations: dict[str, str], vendors: Vendors) -> Iterator[str]:
    if not annotations:
        return
    for vendor in vendors:
        chosen = vendor.select(annotations)
        for what, wanted, unwanted in (
            ("uuid", chosen.use_uuids, chosen.avoid_uuids),
            ("type", chosen.use_types, chosen.avoid_types),
        ):
            both = [entry for entry in wanted if _unwanted(entry, unwanted, what)]
            if both:
                yield (
                    f"card {what} {clip(', '.join(both))} is both wanted and unwanted by the pod's "
                    f"annotations for {vendor.name}: the unwanted wins, no such card is given"
                )


def _unwanted(entry: str, unwanted: tuple[str, ...], what: str) -> bool:
    """Whether no card can be `entry` and pass `unwanted`: types are parts of a product's name."""
    if what == "uuid":
        return entry != "" and entry in unwanted
    return entry != "" and any(other and other.upper() in entry.upper() for other in unwanted)


def _twice(pod: Json, vendors: Vendors) -> Iterator[str]:
    for _, container in containers_of(pod):
        resources = container.get("resources") or {}
        named = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        for vendor in vendors.concerned_by(container):
            amount, percent = vendor.resources.memory, vendor.resources.memory_percent
            if amount and percent and _given(named, amount) and _given(named, percent):
                yield (
                    f"container {container.get('name', '')!r} asks for memory twice, {amount} "
                    f"{named[amount]} and {percent} {named[percent]}: {amount} wins"
                )


def _no_memory(pod: Json, vendors: Vendors) -> Iterator[str]:
    """HAMi takes 0 as not given, which is the most and not the least."""
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


def _given(named: Json, resource: str) -> bool:
    return str(named.get(resource, "0")) != "0"
