"""What the webhook answers when a pod is created: defaults filled in, or a denial with the reason.

In: the pod as raw JSON, the installation's rules, what is known of the cluster; out: a `Verdict`
with a minimal JSON patch. Pure. The decisions and their order are HAMi's (protocol sheet 3, steps 2
to 9); what differs is said at each place. The scheduler's `/filter` sees the pod next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hamicommon.admission.knowledge import NOTHING_KNOWN, Knowledge
from hamicommon.admission.misspelt import misspelt
from hamicommon.admission.patches import Operation, diff
from hamicommon.admission.quota import over_quota
from hamicommon.admission.remarks import remarks
from hamicommon.errors import InvalidRequest
from hamicommon.explain.sentence import quota_sentence
from hamicommon.explain.wording import asked_by
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.resources import pod_request
from hamicommon.k8s.shapes import NoContainers, check_pod
from hamicommon.vendors.base import JsonObject
from hamicommon.vendors.registry import Vendors

DEFAULT_SCHEDULER = "default-scheduler"

OK = 200
BAD_REQUEST = 400
FORBIDDEN = 403
UNPROCESSABLE = 422
"""For amounts that can never be given. HAMi answers 500, which blames the server."""

OVER_QUOTA = "exceeding resource quota"
"""HAMi's words; ours stand behind them."""

Reason = Literal[
    "asks-for-cards",
    "no-cards",
    "other-scheduler",
    "no-pod",
    "no-containers",
    "malformed-amount",
    "privileged",
    "node-assigned",
    "over-quota",
    "never-fits",
]
"""Why a verdict is as it is, in a word, for metrics and audit; the first three admit."""

NeverFits = Literal["deny", "warn", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """How this installation admits pods."""

    vendors: Vendors
    scheduler_name: str
    """Set on pods that ask for cards; empty: pods keep the scheduler that they have."""
    force_overwrite_default_scheduler: bool = True
    """Take over pods whose scheduler is the default one (which is what the API server fills in)."""
    never_fits: NeverFits = "warn"
    """What becomes of pods that no node could take if nothing were granted. A warning by default:
    an autoscaler makes a node for a pod that waits, not for one that was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer: fields of an AdmissionResponse."""

    allowed: bool
    reason: Reason = "no-cards"
    code: int = OK
    message: str = ""
    patch: list[Operation] = field(default_factory=list)
    """RFC 6902 operations; empty when the pod stays as it is."""
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    """Audit annotations: whether cards and quotas were known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What belongs to one review and not to the pod."""

    namespace: str = ""
    """Of the request; empty: the pod's own says it."""
    traceparent: str = ""
    """Stamped on a pod that asks for cards; empty: none is."""
    stamped: bool = False
    """The pod's own stamp is ours, from an earlier look at the same pod: it stays."""
    knowledge: Knowledge = NOTHING_KNOWN


ANY = Circumstances()


def mutate(pod: JsonObject, rules: AdmissionRules, about: Circumstances = ANY) -> Verdict:
    """Judges a pod that is being created.

    Doing it again on the patched pod changes nothing more.
    """
    try:
        check_pod(pod)
    except NoContainers:
        return _denied("pod has no containers", "no-containers")
    except InvalidRequest as exc:
        return _denied(str(exc), "no-pod", code=BAD_REQUEST)
    spec = pod["spec"]
    if _has_other_scheduler(spec.get("schedulerName") or "", rules):
        message = "pod already has different scheduler assigned"
        return Verdict(allowed=True, reason="other-scheduler", message=message)
    after = _editable(pod)
    try:
        wants, warnings = fill_in(after, rules.vendors)
    except InvalidRequest as exc:
        return _denied(str(exc), "malformed-amount", code=UNPROCESSABLE)
    audit: dict[str, str] = {}
    if wants:
        privileged = next(_privileged(spec), None)
        if privileged is not None:
            return _denied(f"container {privileged} is privileged", "privileged")
        if rules.scheduler_name:
            after["spec"]["schedulerName"] = rules.scheduler_name
            if spec.get("nodeName"):
                return _denied("pod has node assigned", "node-assigned")
        refused, more = _room(after, rules, about, audit)
        if refused is not None:
            return refused
        warnings += (*more, *remarks(pod, rules.vendors))
    warnings += misspelt(after, rules.vendors)
    _set_annotations(after, rules.vendors, about if wants else ANY)
    return Verdict(
        allowed=True,
        reason="asks-for-cards" if wants else "no-cards",
        patch=diff(pod, after),
        warnings=warnings,
        audit=audit,
    )


def _editable(pod: JsonObject) -> JsonObject:
    """A copy of what vendors may edit; the rest is shared with the given pod.

    They edit annotations, the runtime class, and of containers resources and environment (entries
    of which they exchange, and don't edit).
    """
    metadata = dict(pod.get("metadata") or {})
    if isinstance(metadata.get("annotations"), dict):
        metadata["annotations"] = dict(metadata["annotations"])
    spec = dict(pod["spec"])
    for part in ("initContainers", "containers"):
        if spec.get(part):
            spec[part] = [_editable_container(container) for container in spec[part]]
    return {**pod, **({"metadata": metadata} if "metadata" in pod else {}), "spec": spec}


def _editable_container(container: JsonObject) -> JsonObject:
    copied = dict(container)
    if copied.get("resources"):
        parts = copied["resources"].items()
        copied["resources"] = {k: dict(v) if isinstance(v, dict) else v for k, v in parts}
    if copied.get("env"):
        copied["env"] = list(copied["env"])
    return copied


def _room(
    pod: JsonObject, rules: AdmissionRules, about: Circumstances, audit: dict[str, str]
) -> tuple[Verdict | None, tuple[str, ...]]:
    """A denial, or warnings: what quotas have left, and what no card of the cluster can take.

    `audit` is told what was known. A request that the scheduler will not be able to read is not
    judged here: `remarks` warns of it.
    """
    try:
        request = pod_request(pod, rules.vendors)
    except InvalidRequest:
        return None, ()
    if not request.wants_devices:
        return None, ()
    known = about.knowledge
    audit["quotas"] = "known" if known.quotas is not None else f"unknown: {known.quotas_unknown}"
    namespace = about.namespace or request.namespace
    short = over_quota(request, namespace, known.quotas_of(namespace), rules.vendors)
    if short is not None:
        return _denied(f"{OVER_QUOTA}: {quota_sentence(short)}", "over-quota", audit=audit), ()
    if rules.never_fits == "off":
        return None, ()
    cards, unknown = known.cards_for(request)
    audit["cards"] = f"unknown: {unknown}" if unknown else "known"
    why = cards.hindrance(request) if cards is not None else ""
    if not why:
        return None, ()
    said = f"no node can take a pod that asks for {_asked(pod, asked_by(request))}: {why}"
    if rules.never_fits == "deny":
        return _denied(said, "never-fits", audit=audit), ()
    return None, (said,)


def _asked(pod: JsonObject, amounts: list[str]) -> str:
    """The amounts, and the annotations that choose among cards, as the user wrote them."""
    chosen = [
        f"{key} {value!r}"
        for key, value in keys.annotations_of(pod).items()
        if key.partition("/")[2].startswith(("use-", "nouse-", "no-use-"))
    ]
    asked = "; ".join(amounts)
    return f"{asked} (annotation {', '.join(chosen)})" if chosen else asked


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
        given = _amounts(container)
        for vendor in vendors.concerned_by(container):
            found = vendor.mutate(container, pod)
            wants = wants or found.wants
            warnings.extend(found.warnings)
        _keep_spelling(container, given)
        _keep_equal(container, given)
    return wants, tuple(warnings)


def _amounts(container: JsonObject) -> dict[str, JsonObject]:
    """A copy of the container's limits and requests."""
    resources = container.get("resources") or {}
    return {part: dict(resources.get(part) or {}) for part in ("limits", "requests")}


def _keep_spelling(container: JsonObject, given: Mapping[str, JsonObject]) -> None:
    """An amount that was written anew with the same value stays as it was.

    The API server stores 100000 as 100k; a second look must not change it back.
    """
    resources = container.get("resources") or {}
    for part, amounts in given.items():
        for name, now in (resources.get(part) or {}).items():
            before = amounts.get(name, now)
            if before is not now and before != now and _same(before, now):
                resources[part][name] = before


def _same(one: object, other: object) -> bool:
    try:
        return parse_exact(one) == parse_exact(other)
    except InvalidRequest:
        return False


def _keep_equal(container: JsonObject, given: Mapping[str, JsonObject]) -> None:
    """Requests follow the limits that were changed: where both are given they must be equal.

    The API server fills requests in from limits before it asks us, and refuses the pod otherwise
    (HAMi's patch of Ascend910C's count is refused so).
    """
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, amount in limits.items():
        if name in requests and "/" in name and given["limits"].get(name, amount) != amount:
            requests[name] = amount


def _containers(spec: JsonObject) -> Iterator[JsonObject]:
    yield from spec.get("initContainers") or ()
    yield from spec["containers"]


def _privileged(spec: JsonObject) -> Iterator[str]:
    for container in _containers(spec):
        if (container.get("securityContext") or {}).get("privileged"):
            yield container.get("name", "")


def _set_annotations(pod: JsonObject, vendors: Vendors, about: Circumstances) -> None:
    """Drops what only the scheduler may write (a user can't claim a grant), stamps the trace."""
    written = keys.annotations_of(pod)
    kept = {keys.TRACEPARENT} if about.stamped else frozenset()
    for key in keys.scheduler_owned(vendors) & written.keys() - kept:
        del written[key]
    if about.traceparent and keys.TRACEPARENT not in written:
        metadata = pod.get("metadata") or {}
        pod["metadata"] = metadata
        metadata["annotations"] = written | {keys.TRACEPARENT: about.traceparent}


def _denied(
    message: str,
    reason: Reason,
    *,
    code: int = FORBIDDEN,
    audit: Mapping[str, str] | None = None,
) -> Verdict:
    return Verdict(allowed=False, reason=reason, code=code, message=message, audit=audit or {})
