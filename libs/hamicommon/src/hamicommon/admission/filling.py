"""Let vendors fill in each container's defaults, keeping amounts as the API server wants them.

Input: a copy of a pod that may be edited. Output: whether it asks for a card, and warnings for its
user. If the pod wants to ask by a claim, its limits are converted to one (`by_claim`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.domain.requests import PodRequest
from hamicommon.dra.claims import VENDOR
from hamicommon.dra.conversion import NotClaimable, convert, front_end_of
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.pod_annotations import FRONT_END
from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors


def fill_in(pod: Json, vendors: Vendors) -> tuple[bool, tuple[str, ...]]:
    """Let every vendor edit every container; the first value is whether one asks for a card.

    The strings are warnings for the user.

    Raises: InvalidRequest when a container asks for something that can never be given.
    """
    wants, warnings = False, list[str]()
    for container in containers_of(pod["spec"]):
        given = _amounts(container)
        for vendor in vendors.concerned_by(container):
            found = vendor.mutate(container, pod)
            wants = wants or found.wants
            warnings.extend(found.warnings)
        _keep_spelling(container, given)
        _keep_equal(container, given)
    return wants, tuple(warnings)


def by_claim(pod: Json, request: PodRequest | None, rules: AdmissionRules) -> tuple[str, ...]:
    """Turn the pod's limits into a ResourceClaim if its annotation asks for that; return warnings.

    `pod` may be edited; `request` is its request for cards, None: it has none.
    """
    wanted = front_end_of(pod)
    if not wanted or request is None:
        return ()
    if wanted != "dra":
        return ()
    where = f"annotation {FRONT_END.name} is 'dra'"
    if not rules.claims:
        return (f"{where}, which is off in this installation; the pod keeps its limits",)
    try:
        convert(
            pod,
            request,
            rules.vendors.resource_names,
            kept_at_zero=_asking_us(pod, rules),
        )
    except NotClaimable as exc:
        return (f"{where}, and the pod keeps its limits: {exc}",)
    return ()


def _asking_us(pod: Json, rules: AdmissionRules) -> str:
    """Return the resource that the pod must name with amount 0, if our scheduler places it.

    Because of it kube-scheduler asks its extender: it looks only at resources, not at claims.
    """
    ours = rules.scheduler_name and pod["spec"].get("schedulerName") == rules.scheduler_name
    return rules.vendors[VENDOR].resources.count if ours else ""


def _amounts(container: Json) -> dict[str, Json]:
    """Return a copy of the container's limits and requests."""
    resources = container.get("resources") or {}
    return {part: dict(resources.get(part) or {}) for part in ("limits", "requests")}


def _keep_spelling(container: Json, given: Mapping[str, Json]) -> None:
    """Restore the original spelling of each amount that was rewritten with the same value.

    The API server stores 100000 as 100k; a second look must not change it back.
    """
    resources = container.get("resources") or {}
    for part, written in given.items():
        for name, now in (resources.get(part) or {}).items():
            before = written.get(name, now)
            if before is not now and before != now and _same(before, now):
                resources[part][name] = before


def _same(one: object, other: object) -> bool:
    try:
        return parse_exact(one) == parse_exact(other)
    except InvalidRequest:
        return False


def _keep_equal(container: Json, given: Mapping[str, Json]) -> None:
    """Set a container's requests to the limits that were changed, because both must be equal.

    The API server fills requests in from limits before it asks us, and refuses the pod otherwise
    (HAMi's patch of Ascend910C's count is refused so).
    """
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, amount in limits.items():
        if name in requests and "/" in name and given["limits"].get(name, amount) != amount:
            requests[name] = amount


def containers_of(spec: Json) -> Iterator[Json]:
    """Yield init containers, then app containers."""
    yield from spec.get("initContainers") or ()
    yield from spec["containers"]


def editable(pod: Json) -> Json:
    """Return a copy of the pod's parts that vendors may edit; other parts are shared with `pod`.

    They edit annotations, the runtime class, and of containers resources and environment (entries
    of which they exchange, and don't edit).
    """
    metadata = dict(pod.get("metadata") or {})
    if isinstance(metadata.get("annotations"), dict):
        metadata["annotations"] = dict(metadata["annotations"])
    if isinstance(metadata.get("labels"), dict):
        metadata["labels"] = dict(metadata["labels"])
    spec = dict(pod["spec"])
    for part in ("initContainers", "containers", "ephemeralContainers"):
        if spec.get(part):
            spec[part] = [_editable_container(container) for container in spec[part]]
    return {**pod, **({"metadata": metadata} if "metadata" in pod else {}), "spec": spec}


def _editable_container(container: Json) -> Json:
    copied = dict(container)
    if copied.get("resources"):
        parts = copied["resources"].items()
        copied["resources"] = {k: dict(v) if isinstance(v, dict) else v for k, v in parts}
    if copied.get("env"):
        copied["env"] = list(copied["env"])
    return copied
