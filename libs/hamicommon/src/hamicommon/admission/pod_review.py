"""Review of a pod without the cluster's cards, the quotas and the trace.

Input: the pod as raw JSON and the installation's rules. Output: a `Look`. Pure. Only the `relevant`
parts of the pod are read, so two pods with equal parts get the same result: the replicas of a
workload differ in their names, volumes and mounts (`cache.py` relies on it), of which only those
count that undo slices (`tampering/`). `mutation.py` continues.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hamicommon.admission.filling import by_claim, containers_of, editable, fill_in
from hamicommon.admission.marker import mark
from hamicommon.admission.mistakes.typos import misspelt
from hamicommon.admission.mistakes.warnings import remarks
from hamicommon.admission.patches import Operation, diff
from hamicommon.admission.tampering.findings import NamespacePermits
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.tampering.settling import CLEAN, settle
from hamicommon.admission.verdicts import (
    BAD_REQUEST,
    UNPROCESSABLE,
    AdmissionResult,
    AdmissionRules,
    deny,
)
from hamicommon.admission.whole_cards import check_preload
from hamicommon.clipping import clip
from hamicommon.domain.requests import PodRequest
from hamicommon.dra.conversion import is_converted
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.quantities import is_zero
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import NoContainers, check_pod
from hamicommon.vendors.annotation_table import scheduler_owned
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.pod_request import check_containers, pod_request, wants_devices
from hamicommon.vendors.registry import Vendors

DEFAULT_SCHEDULER = "default-scheduler"
OTHER_SCHEDULER = "pod already has different scheduler assigned"
"""HAMi's text for a pod that names another scheduler."""

_OF_METADATA = frozenset({"namespace", "annotations", "labels"})
STAMPS = (keys.TRACEPARENT, keys.CREATED_BY)
"""Annotations that admission writes on each pod that asks for a card."""

_NAMES = frozenset({"name", "uid"})
"""Fields of the metadata that matter only if they are not strings, which is refused."""
_LISTS = ("initContainers", "containers")
_OF_SPEC = frozenset(
    {"schedulerName", "nodeName", "runtimeClassName", "hostPID", "resourceClaims", *_LISTS}
)
_MOUNTS = ("volumeMounts", "volumeDevices")
_OF_CONTAINER = frozenset({"name", "restartPolicy", "securityContext", "resources", "env"})

Missing = Literal["metadata", "annotations", "key"]
"""First missing part of the path at which stamps are written; `key`: the annotations exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Result of the review of the pod only."""

    verdict: AdmissionResult | None = None
    """Final answer, if neither cards nor quotas can change it."""
    wants: bool = False
    """Whether the pod asks for a card."""
    request: PodRequest | None = None
    """The cards that the pod asks for; None: it asks for none."""
    chosen: tuple[str, ...] = ()
    """The annotations that choose among cards, as the user wrote them."""
    patch: tuple[Operation, ...] = ()
    """All changes of the pod except the stamps."""
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """Warnings that are shown after those about the cluster."""
    stamp_at: Missing = "key"
    """First part of the stamps' path that is missing after `patch`."""
    stamps: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Values of `STAMPS` that the pod already has."""
    audit: Mapping[str, str] = field(default_factory=dict)
    """Audit annotations: parts that were stripped, or that the installation allows."""


def relevant(pod: Json, guard: Guard) -> Json:
    """Return the parts of a pod on which its verdict depends; they are shared with `pod`.

    Of volumes and mounts, only those that `guard` has to judge.
    """
    found: Json = {}
    metadata, spec = pod.get("metadata"), pod.get("spec")
    if isinstance(metadata, dict):
        found["metadata"] = {
            key: value
            for key, value in metadata.items()
            if value is not None
            and (key in _OF_METADATA or (key in _NAMES and not isinstance(value, str)))
        }
    elif metadata is not None:
        found["metadata"] = metadata
    if isinstance(spec, dict):
        kept = {key: value for key, value in spec.items() if key in _OF_SPEC}
        hosts = guard.mounts.host_volumes(spec.get("volumes"))
        if hosts:
            kept["volumes"] = spec["volumes"]
        for key in _LISTS:
            if isinstance(kept.get(key), list):
                kept[key] = [_relevant(container, guard, hosts) for container in kept[key]]
        found["spec"] = kept
    elif "spec" in pod:
        found["spec"] = spec
    return found


def _relevant(container: Any, guard: Guard, hosts: Container[str]) -> Any:
    if not isinstance(container, dict):
        return container
    kept = {key: value for key, value in container.items() if key in _OF_CONTAINER}
    if guard.mounts.concern(container, hosts):
        kept |= {key: container[key] for key in _MOUNTS if key in container}
    return kept


def look_at(seen: Json, rules: AdmissionRules, standing: NamespacePermits) -> Look:
    """Review the parts of a new pod that `relevant` returned.

    `standing`: what its namespace may do.
    """
    guard = Guard.of(rules.vendors, rules.tampering)
    try:
        check_pod(seen)
    except NoContainers:
        return Look(verdict=deny("pod has no containers", "no-containers"))
    except InvalidRequest as exc:
        return Look(verdict=deny(str(exc), "no-pod", code=BAD_REQUEST))
    spec = seen["spec"]
    after = editable(seen)
    if _has_other_scheduler(spec.get("schedulerName") or "", rules):
        return _of_other_scheduler(seen, after, guard, rules.vendors, standing)
    try:
        check_containers(seen, rules.vendors)
        wants, warnings = fill_in(after, rules.vendors)
    except InvalidRequest as exc:
        return Look(verdict=deny(str(exc), "malformed-amount", code=UNPROCESSABLE))
    claims = is_converted(seen)
    if wants or claims:
        refused = _never_ours(spec, rules)
        if refused is not None:
            return Look(verdict=refused)
        try:
            check_preload(after, rules.vendors)
        except InvalidRequest as exc:
            return Look(verdict=deny(str(exc), "malformed-annotation", code=UNPROCESSABLE))
    asks = wants or claims or wants_devices(after, rules.vendors)
    tampering = settle(after, guard.findings(after, standing, wants=asks), guard)
    if tampering.refused is not None:
        return Look(verdict=tampering.refused)
    try:
        request = pod_request(after, rules.vendors) if wants else None
    except InvalidRequest as exc:
        return Look(verdict=deny(str(exc), "malformed-annotation", code=UNPROCESSABLE))
    if request is not None and not request.wants_devices:
        request = None
    stays = by_claim(after, request, rules)
    claims = claims or is_converted(after)
    if (
        rules.scheduler_name
        and not claims
        and (wants or _only_we_can_schedule(spec, rules.vendors))
    ):
        after["spec"]["schedulerName"] = rules.scheduler_name
        if request is not None and rules.marks_slices:
            mark(after, request)
    oddities = (*(remarks(seen, rules.vendors) if wants else ()), *misspelt(after, rules.vendors))
    if not claims:
        keys.annotations_of(after).pop(keys.CLAIM_SHAPE, None)
    look = _filled_in(
        seen,
        after,
        rules,
        wants=wants or claims,
        request=request,
        warnings=(*warnings, *stays),
        oddities=oddities,
    )
    if tampering is CLEAN:
        return look
    return replace(look, warnings=(*tampering.warnings, *look.warnings), audit=tampering.audit)


def _of_other_scheduler(
    seen: Json, after: Json, guard: Guard, vendors: Vendors, standing: NamespacePermits
) -> Look:
    """Leave the pod to its own scheduler, but judge the parts of it that a node would read.

    HAMi admits it untouched: its author could see all cards by naming another scheduler.
    """
    for container in containers_of(after["spec"]):
        guard.hide_cards(container)
    asks = wants_devices(after, vendors)
    tampering = settle(after, guard.findings(after, standing, wants=asks), guard)
    admitted = AdmissionResult(
        allowed=True,
        reason="other-scheduler",
        message=OTHER_SCHEDULER,
        patch=diff(seen, after),
        warnings=tampering.warnings,
        audit=tampering.audit,
    )
    return Look(verdict=tampering.refused or admitted)


def _filled_in(
    seen: Json,
    after: Json,
    rules: AdmissionRules,
    *,
    wants: bool,
    request: PodRequest | None,
    warnings: tuple[str, ...],
    oddities: tuple[str, ...],
) -> Look:
    written = keys.annotations_of(after)
    chosen = tuple(
        f"{key} '{clip(value)}'"
        for key, value in written.items()
        if key.partition("/")[2].startswith(("use-", "nouse-", "no-use-"))
    )
    # What only the scheduler may write: a user can't claim a grant.
    for key in scheduler_owned(rules.vendors) & written.keys() - set(STAMPS):
        del written[key]
    return Look(
        wants=wants,
        request=request,
        chosen=chosen,
        patch=tuple(diff(seen, after)),
        warnings=warnings,
        remarks=oddities,
        stamp_at=_missing(after.get("metadata")),
        stamps={key: written[key] for key in STAMPS if key in written},
    )


def _missing(metadata: Json | None) -> Missing:
    if metadata is None:
        return "metadata"
    return "key" if "annotations" in metadata else "annotations"


def _only_we_can_schedule(spec: Json, vendors: Vendors) -> bool:
    """Return whether the pod asks for no card but names amounts that no node lists.

    Other schedulers look for them on the nodes; the one in front of us is configured to ignore
    them.
    Memory or cores without any count are no such pod: that a card is missing must be seen.
    """
    if spec.get("nodeName"):
        return False
    return any(
        amounts.asks(container, name)
        for container in containers_of(spec)
        for vendor in vendors.concerned_by(container)
        if is_zero(amounts.find(container, vendor.resources.count))
        or amounts.asks(container, vendor.resources.priority)
        for name in vendor.resources.all()
    )


def _never_ours(spec: Json, rules: AdmissionRules) -> AdmissionResult | None:
    """Return a refusal if a pod that asks for a card is privileged or names its node; else None."""
    privileged = next(_privileged_containers(spec), None)
    if privileged is not None:
        return deny(f"container {privileged} is privileged", "privileged")
    if rules.scheduler_name and spec.get("nodeName"):
        return deny("pod has node assigned", "node-assigned")
    return None


def _has_other_scheduler(name: str, rules: AdmissionRules) -> bool:
    """Return whether the pod names a scheduler that is neither ours nor one that we replace."""
    if not name or (name == DEFAULT_SCHEDULER and rules.force_overwrite_default_scheduler):
        return False
    return not rules.scheduler_name or name != rules.scheduler_name


def _privileged_containers(spec: Json) -> Iterator[str]:
    for container in containers_of(spec):
        if (container.get("securityContext") or {}).get("privileged"):
            yield container.get("name", "")
