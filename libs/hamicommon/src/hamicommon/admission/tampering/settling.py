"""Decide on a pod with findings: refuse it, remove the parts, or leave it as it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hamicommon.admission.tampering.findings import MAX_FINDINGS, Finding, refusal
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.verdicts import AdmissionResult, Reason, deny
from hamicommon.clipping import clip
from hamicommon.k8s.types import Json

_LISTS = {"variable": "env", "mount": "volumeMounts", "device": "volumeDevices"}


def strip(spec: Json, findings: Sequence[Finding]) -> None:
    """Remove the findings from the spec, which the caller owns.

    Lists and objects with findings are replaced, not edited. `findings` are strippable and of this
    spec.
    """
    changes: dict[tuple[str, int, str], dict[int, Finding]] = defaultdict(dict)
    for found in findings:
        if found.kind == "host-namespace":
            spec.pop(found.name, None)
        elif found.kind == "capability":
            _drop_capability(spec[found.part][found.index], found.name)
        else:
            changes[found.part, found.index, _LISTS[found.kind]][found.place] = found
    for (part, index, listed), found_at in changes.items():
        container = spec[part][index]
        kept = _apply_findings(container[listed], found_at)
        if kept:
            container[listed] = kept
        else:
            del container[listed]


def _apply_findings(entries: Sequence[Any], found_at: Mapping[int, Finding]) -> list[Any]:
    """Return the entries without the findings; a replaced variable appears once."""
    kept: list[Any] = []
    written: set[str] = set()
    for place, entry in enumerate(entries):
        found = found_at.get(place)
        if found is None:
            kept.append(entry)
        elif found.instead is not None and found.name not in written:
            written.add(found.name)
            kept.append({"name": found.name, "value": found.instead})
    return kept


def _drop_capability(container: Json, name: str) -> None:
    context = dict(container["securityContext"])
    capabilities = dict(context["capabilities"])
    capabilities["add"] = [each for each in capabilities["add"] if each != name]
    context["capabilities"] = capabilities
    container["securityContext"] = context


AUDIT_KEY = "tampering"
_MAX_CHARACTERS = 1024
"""Characters of an audit annotation."""
_NOTHING: Mapping[str, str] = {}


class TamperingDecision(NamedTuple):
    """Decision on a pod with findings: a refusal, or warnings and audit annotations."""

    refused: AdmissionResult | None = None
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = _NOTHING


CLEAN = TamperingDecision()


def settle(pod: Json, found: Sequence[Finding], guard: Guard) -> TamperingDecision:
    """Refuse the pod, or edit it; the caller owns it (`filling.editable`)."""
    if not found:
        return CLEAN
    unknown = tuple(each.sentence for each in found if each.unknown)
    judged = [each for each in found if not each.unknown]
    mode = guard.policy.mode
    if not judged:
        return TamperingDecision(warnings=unknown)
    sentences = tuple(each.sentence for each in judged)
    if mode == "allow":
        return TamperingDecision(warnings=(*sentences, *unknown), audit=_audit("allowed", judged))
    refuses = mode == "refuse" or len(found) > MAX_FINDINGS
    kept = [each for each in judged if refuses or not each.strippable]
    if kept:
        return TamperingDecision(refused=deny(refusal(kept), _reason(kept)))
    strip(pod["spec"], judged)
    removed = tuple(f"removed: {sentence}" for sentence in sentences)
    return TamperingDecision(warnings=(*removed, *unknown), audit=_audit("stripped", judged))


def _reason(found: Sequence[Finding]) -> Reason:
    return "priority" if all(each.needs == "priority" for each in found) else "tampering"


def _audit(done: str, found: Sequence[Finding]) -> Mapping[str, str]:
    return {AUDIT_KEY: clip(f"{done}: {refusal(found)}", _MAX_CHARACTERS)}
