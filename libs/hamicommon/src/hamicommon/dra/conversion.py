"""Convert a pod's limits into a ResourceClaim, as the annotation `hami.io/front-end: dra` asks.

Pure.

The pod gets an entry that names a ResourceClaimTemplate, and its shape as an annotation, from which
the template is created (`shapes.py`): admission itself creates nothing, so a dry run, a pod that is
refused later and a name that is not generated yet leave no object behind. A pod whose request a
claim can't express keeps its limits: the same ledger grants both.
"""

from __future__ import annotations

from collections.abc import Collection

from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest
from hamicommon.dra.claims import VENDOR
from hamicommon.dra.shapes import (
    MAX_CARDS,
    MAX_SELECTOR,
    ClaimShape,
    SliceShape,
    request_name,
    selector_of,
    shape_from,
)
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_annotations import FRONT_END, NVIDIA_ANNOTATIONS, USER_ANNOTATIONS
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.types import Json, JsonMapping

ENTRY = "hami"
"""Name of the claim in the pod's spec."""
_NOT_STATED = tuple(
    row.name for row in (*USER_ANNOTATIONS, *NVIDIA_ANNOTATIONS) if not row.in_claims
)
"""Annotations that a ResourceClaim can't express."""


class NotClaimable(InvalidRequest):
    """Error: a ResourceClaim can't express what the pod asks for; the message names it."""


def front_end_of(pod: JsonMapping) -> str:
    """Return the value of the pod's annotation `hami.io/front-end`; empty if there is none."""
    return str(FRONT_END.read(keys.annotations_of(pod)) or "")


def is_converted(pod: JsonMapping) -> bool:
    """Return whether the webhook converted the pod already: its spec has the claim of its shape."""
    text = keys.annotations_of(pod).get(keys.CLAIM_SHAPE)
    if not isinstance(text, str):
        return False
    try:
        name = shape_from(text).template_name
    except InvalidRequest:
        return False
    entries = (pod.get("spec") or {}).get("resourceClaims")
    return isinstance(entries, list) and any(
        isinstance(entry, dict) and entry.get("resourceClaimTemplateName") == name
        for entry in entries
    )


def convert(
    pod: Json,
    request: PodRequest,
    resources: Collection[str],
    *,
    kept_at_zero: str = "",
) -> None:
    """Replace the pod's limits by a claim, editing `pod`.

    `pod` may be edited (`admission.filling.editable`), `request` is its request by limits,
    `resources` names the extended resources to remove from its limits, `kept_at_zero`: a resource
    of which it keeps a limit of 0, so that its kube-scheduler asks us. Raises: NotClaimable; then
    the pod is unchanged.
    """
    _check(pod, request)
    slices, numbers = _slices(request)
    chosen = request.selection_of(VENDOR)
    shape = ClaimShape(
        slices=slices,
        use_types=chosen.use_types,
        avoid_types=chosen.avoid_types,
        use_uuids=chosen.use_uuids,
        avoid_uuids=chosen.avoid_uuids,
    )
    if len(selector_of(shape).encode()) > MAX_SELECTOR - 100:
        raise NotClaimable("its annotations name more cards than a selector can hold")
    spec = pod["spec"]
    spec["resourceClaims"] = [
        *(spec.get("resourceClaims") or ()),
        {"name": ENTRY, "resourceClaimTemplateName": shape.template_name},
    ]
    for (_, container), number in zip(containers_of(pod), numbers, strict=True):
        _take_limits(container, resources)
        if number is not None:
            entry = {"name": ENTRY, "request": request_name(number)}
            held = container.setdefault("resources", {})
            held["claims"] = [*(held.get("claims") or ()), entry]
            if kept_at_zero:
                held["limits"] = {**(held.get("limits") or {}), kept_at_zero: "0"}
    pod["metadata"]["annotations"][keys.CLAIM_SHAPE] = shape.text


def _check(pod: Json, request: PodRequest) -> None:
    written = keys.annotations_of(pod)
    for key in _NOT_STATED:
        if written.get(key):
            raise NotClaimable(f"a ResourceClaim can't express the annotation {key}")
    asked = [each for container in request.containers for each in container.requests]
    for each in asked:
        if each.vendor != VENDOR:
            raise NotClaimable(f"cards of {each.vendor} can't be requested by ResourceClaims")
        if each.traits:
            raise NotClaimable("a ResourceClaim can't express " + ", ".join(sorted(each.traits)))
    if sum(each.count for each in asked) > MAX_CARDS:
        raise NotClaimable(f"a ResourceClaim has at most {MAX_CARDS} cards")
    entries = pod["spec"].get("resourceClaims") or ()
    if any(entry.get("name") == ENTRY for entry in entries):
        raise NotClaimable(f"its spec has a claim with the name {ENTRY} already")


def _slices(request: PodRequest) -> tuple[tuple[SliceShape, ...], tuple[int | None, ...]]:
    """Return the slices to request, and for each container the number of its slice.

    An init container has its slices before the app containers have theirs, so it takes the request
    of one of the same shape; with another shape it needs its own, which is held as long as the pod.
    """
    slices: list[SliceShape] = []
    numbers: dict[int, int] = {}
    shared: dict[SliceShape, int] = {}
    found = [
        (position, container.role, _slice_of(container))
        for position, container in enumerate(request.containers)
        if container.requests
    ]
    for position, role, wanted in found:
        if role != "init":
            numbers[position] = len(slices)
            # A sidecar starts before the init containers behind it, and continues.
            if role == "app":
                shared.setdefault(wanted, len(slices))
            slices.append(wanted)
    for position, role, wanted in found:
        if role == "init":
            if wanted not in shared:
                shared[wanted] = len(slices)
                slices.append(wanted)
            numbers[position] = shared[wanted]
    return tuple(slices), tuple(numbers.get(n) for n in range(len(request.containers)))


def _slice_of(container: ContainerRequest) -> SliceShape:
    if len(container.requests) > 1:
        raise NotClaimable(f"container {container.name} asks for cards in two ways")
    [each] = container.requests
    return SliceShape(
        count=each.count,
        memory_mib=each.memory_mib,
        memory_percent=_percent(each),
        core_percent=min(each.core_percent, 100),
    )


def _percent(each: DeviceRequest) -> int:
    """Return the percent of memory to request; 0 if the request names an amount."""
    if each.memory_mib:
        return 0
    return 100 if each.memory_percent is None else each.memory_percent


def _take_limits(container: Json, resources: Collection[str]) -> None:
    held = container.get("resources") or {}
    for part in ("limits", "requests"):
        given = held.get(part)
        if not isinstance(given, dict) or given.keys().isdisjoint(resources):
            continue
        left = {name: amount for name, amount in given.items() if name not in resources}
        if left:
            held[part] = left
        else:
            del held[part]
