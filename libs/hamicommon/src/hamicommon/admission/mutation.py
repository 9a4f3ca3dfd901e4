"""What the webhook answers when a pod is created: defaults filled in, or a denial with the reason.

In: the pod as raw JSON and the installation's rules; out: a `Verdict` with a minimal JSON patch.
Pure. The decisions and their order are HAMi's (protocol sheet 3, steps 2 to 9 without quota); what
differs is said at each place. The scheduler's `/filter` sees the pod next.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field

from hamicommon.admission.misspelt import misspelt
from hamicommon.admission.patches import Operation, diff
from hamicommon.admission.remarks import remarks
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.vendors.base import JsonObject
from hamicommon.vendors.registry import Vendors

DEFAULT_SCHEDULER = "default-scheduler"

OK = 200
FORBIDDEN = 403
UNPROCESSABLE = 422
"""For amounts that can never be given. HAMi answers 500, which blames the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """How this installation admits pods."""

    vendors: Vendors
    scheduler_name: str
    """Set on pods that ask for cards; empty: pods keep the scheduler that they have."""
    force_overwrite_default_scheduler: bool = True
    """Take over pods whose scheduler is the default one (which is what the API server fills in)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer: fields of an AdmissionResponse."""

    allowed: bool
    code: int = OK
    message: str = ""
    patch: list[Operation] = field(default_factory=list)
    """RFC 6902 operations; empty when the pod stays as it is."""
    warnings: tuple[str, ...] = ()


def mutate(pod: JsonObject, rules: AdmissionRules, *, traceparent: str = "") -> Verdict:
    """Judges a pod that is being created.

    Doing it again on the patched pod changes nothing more. `traceparent` is stamped on pods that
    ask for cards.
    """
    spec = pod.get("spec") or {}
    if not spec.get("containers"):
        return _denied("pod has no containers")
    if _has_other_scheduler(spec.get("schedulerName") or "", rules):
        return Verdict(allowed=True, message="pod already has different scheduler assigned")
    after = deepcopy(pod)
    try:
        wants, warnings = fill_in(after, rules.vendors)
    except InvalidRequest as exc:
        return _denied(str(exc), code=UNPROCESSABLE)
    if wants:
        privileged = next(_privileged(spec), None)
        if privileged is not None:
            return _denied(f"container {privileged} is privileged")
        if rules.scheduler_name:
            after["spec"]["schedulerName"] = rules.scheduler_name
            if spec.get("nodeName"):
                return _denied("pod has node assigned")
        warnings += remarks(pod, rules.vendors)
    warnings += misspelt(after, rules.vendors)
    _set_annotations(after, rules.vendors, traceparent if wants else "")
    return Verdict(allowed=True, patch=diff(pod, after), warnings=warnings)


def _has_other_scheduler(name: str, rules: AdmissionRules) -> bool:
    """True for a pod that names a scheduler which is neither ours nor one that we replace."""
    if not name or (name == DEFAULT_SCHEDULER and rules.force_overwrite_default_scheduler):
        return False
    return not rules.scheduler_name or name != rules.scheduler_name


def fill_in(pod: JsonObject, vendors: Vendors) -> tuple[bool, tuple[str, ...]]:
    """Lets every vendor edit every container; True when one of them asks for a card.

    The strings are warnings for the user.

    Raises: InvalidRequest when a container asks for something that can never be given.
    """
    wants, warnings = False, list[str]()
    for container in _containers(pod["spec"]):
        for vendor in vendors:
            found = vendor.mutate(container, pod)
            wants = wants or found.wants
            warnings.extend(found.warnings)
    return wants, tuple(warnings)


def _containers(spec: JsonObject) -> Iterator[JsonObject]:
    yield from spec.get("initContainers") or ()
    yield from spec["containers"]


def _privileged(spec: JsonObject) -> Iterator[str]:
    for container in _containers(spec):
        if (container.get("securityContext") or {}).get("privileged"):
            yield container.get("name", "")


def _set_annotations(pod: JsonObject, vendors: Vendors, traceparent: str) -> None:
    """Drops what only the scheduler may write (a user can't claim a grant), stamps the trace."""
    written = keys.annotations_of(pod)
    for key in keys.scheduler_owned(vendors) & written.keys():
        del written[key]
    if traceparent:
        metadata = pod.setdefault("metadata", {})
        metadata["annotations"] = written | {keys.TRACEPARENT: traceparent}


def _denied(message: str, *, code: int = FORBIDDEN) -> Verdict:
    return Verdict(allowed=False, code=code, message=message)
