"""Answer of the webhook to a pod that is created: defaults filled in, or a refusal with the reason.

Input: the pod as raw JSON, the installation's rules and the known state of the cluster. Output: an
`AdmissionResult` with a minimal JSON patch. Pure. The decisions and their order are HAMi's
(protocol 3, steps 2 to 9); a comment marks each difference. `pod_review.py` decides what depends on
the pod only; this module adds the cluster, the quotas and the trace. The scheduler's `/filter` sees
the pod next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hamicommon.admission.patches import Operation
from hamicommon.admission.pod_review import Look, look_at, relevant
from hamicommon.admission.quota import over_quota
from hamicommon.admission.tampering.ephemeral import review_ephemeral
from hamicommon.admission.tampering.findings import NamespacePermits
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.verdicts import (
    ANY,
    UNPROCESSABLE,
    AdmissionCircumstances,
    AdmissionResult,
    AdmissionRules,
    Knowledge,
    deny,
)
from hamicommon.clipping import clip
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.sentences import asked_by, quota_sentence
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import metadata_of
from hamicommon.vendors.pod_request import MAX_CONTAINERS, too_many_containers

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the object by which a kubelet shows a static pod."""
MIRRORED = "a static pod of its node"

OVER_QUOTA = "exceeding resource quota"
"""HAMi's text of a refusal for quota; our own text follows it."""

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")

MAX_WARNINGS = 32
"""Maximum number of warnings: an object may have thousands of annotations with odd names."""
MAX_WARNING_LENGTH = 1024
"""Maximum characters of a warning; the API server cuts all warnings of an answer at 4096."""


def mutate(
    pod: Json, rules: AdmissionRules, about: AdmissionCircumstances = ANY
) -> AdmissionResult:
    """Judge a pod that is being created, or that gets ephemeral containers (`about.before`).

    Doing it again on the patched pod changes nothing more.
    """
    guard = Guard.of(rules.vendors, rules.tampering)
    at_once = judge_at_once(pod, guard, about)
    if at_once is not None:
        return at_once
    standing = standing_of(pod, rules, about)
    look = look_at(relevant(pod, guard), rules, standing)
    room = None
    if look.request is not None and rules.never_fits != "off":
        room = room_for(look.request, about.knowledge)
    return judge(look, rules, about, room)


class Room(NamedTuple):
    """Answer to the question whether a request could run if all cards were idle."""

    never_fits: str = ""
    """Reason in one sentence why no node could take it; empty: one could, or it is unknown."""
    unknown: str = ""
    """Reason why the question could not be answered; empty if it was."""


def room_for(request: PodRequest, known: Knowledge) -> Room:
    """Find out whether the cluster could take the request if all of its cards were idle."""
    cards, unknown = known.cards_for(request)
    return Room(unknown=unknown) if cards is None else Room(cards.never_fits_reason(request))


def judge_at_once(pod: Json, guard: Guard, about: AdmissionCircumstances) -> AdmissionResult | None:
    """Return the verdict if the pod mirrors a static one or gets a debug container; else None."""
    if about.by_node and _is_mirror(pod):
        return AdmissionResult(allowed=True, reason="mirror-pod", message=MIRRORED)
    containers = _count_containers(pod)
    if containers > MAX_CONTAINERS:
        refusal = str(too_many_containers(containers))
        return deny(refusal, "malformed-amount", code=UNPROCESSABLE)
    if about.before is not None:
        return review_ephemeral(pod, about.before, guard, about.namespace)
    return None


def _count_containers(pod: Json) -> int:
    spec = pod.get("spec")
    lists = [spec.get(key) for key in CONTAINER_LISTS] if isinstance(spec, dict) else []
    return sum(len(containers) for containers in lists if isinstance(containers, list))


def _is_mirror(pod: Json) -> bool:
    """Whether the pod mirrors a static pod; NodeRestriction lets a kubelet create no other pod."""
    written = metadata_of(pod).get("annotations")
    return isinstance(written, dict) and MIRROR in written


def standing_of(
    pod: Json, rules: AdmissionRules, about: AdmissionCircumstances
) -> NamespacePermits:
    """Return what pods of the pod's namespace may do."""
    return rules.tampering.standing(about.namespace or str(metadata_of(pod).get("namespace") or ""))


def judge(
    look: Look, rules: AdmissionRules, about: AdmissionCircumstances, room: Room | None
) -> AdmissionResult:
    """Return the verdict on a reviewed pod.

    `room`: what the cards answered to `look.request`; None: they are not asked.
    """
    if look.verdict is not None:
        # Its own list of steps: the look may be cached.
        kept = look.verdict
        return replace(kept, patch=list(kept.patch)) if kept.patch else kept
    audit = dict(look.audit)
    more: tuple[str, ...] = ()
    if look.request is not None:
        refused, more = _cluster(look, look.request, rules, about, room, audit)
        if refused is not None:
            return refused
    return AdmissionResult(
        allowed=True,
        reason="asks-for-cards" if look.wants else "no-cards",
        patch=[*look.patch, *_stamp_operations(look, about)],
        warnings=_limit_warnings((*look.warnings, *more, *look.remarks)),
        audit=audit,
    )


def _limit_warnings(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Limit the number and the length of warnings to what the API server passes on."""
    left_out = len(warnings) - MAX_WARNINGS
    shown = tuple(clip(text, MAX_WARNING_LENGTH) for text in warnings[:MAX_WARNINGS])
    return (*shown, f"{left_out} more warnings are left out") if left_out > 0 else shown


def _cluster(
    look: Look,
    request: PodRequest,
    rules: AdmissionRules,
    about: AdmissionCircumstances,
    room: Room | None,
    audit: dict[str, str],
) -> tuple[AdmissionResult | None, tuple[str, ...]]:
    """Return a refusal, or warnings, because of quotas and of the capacity of the cluster's cards.

    Adds to `audit` whether both were known.
    """
    known = about.knowledge
    audit["quotas"] = "known" if known.quotas is not None else f"unknown: {known.quotas_unknown}"
    namespace = about.namespace or request.namespace
    short = over_quota(request, namespace, known.quotas_of(namespace), rules.vendors)
    if short is not None:
        return deny(f"{OVER_QUOTA}: {quota_sentence(short)}", "over-quota", audit=audit), ()
    if room is None:
        return None, ()
    audit["cards"] = f"unknown: {room.unknown}" if room.unknown else "known"
    if not room.never_fits:
        return None, ()
    asked = _request_text(look, asked_by(request))
    sentence = f"no node can take a pod that asks for {asked}: {room.never_fits}"
    if rules.never_fits == "deny":
        return deny(sentence, "never-fits", audit=audit), ()
    return None, (sentence,)


def _request_text(look: Look, amounts: list[str]) -> str:
    """Return the amounts and the annotations that choose cards, as the user wrote them."""
    asked = "; ".join(amounts)
    return f"{asked} (annotation {', '.join(look.chosen)})" if look.chosen else asked


def _stamp_operations(look: Look, about: AdmissionCircumstances) -> tuple[Operation, ...]:
    """Add trace context and creator's name to the patch of a pod that asks for cards."""
    wanted: dict[str, str] = {}
    if look.wants:
        trace = look.stamps.get(keys.TRACEPARENT, "") if about.stamped else about.traceparent
        wanted = {keys.TRACEPARENT: trace, keys.CREATED_BY: clip(about.username)}
    done: list[Operation] = []
    for key, brought in look.stamps.items():
        value = wanted.pop(key, "")
        if not value:
            done.append({"op": "remove", "path": _path(key)})
        elif value != brought:
            done.append({"op": "replace", "path": _path(key), "value": value})
    missing = {key: value for key, value in wanted.items() if value}
    if not missing:
        return tuple(done)
    if look.stamp_at == "key":
        added = [{"op": "add", "path": _path(key), "value": missing[key]} for key in missing]
        return (*done, *added)
    if look.stamp_at == "annotations":
        return ({"op": "add", "path": "/metadata/annotations", "value": missing},)
    return ({"op": "add", "path": "/metadata", "value": {"annotations": missing}},)


def _path(key: str) -> str:
    return "/metadata/annotations/" + key.replace("/", "~1")
