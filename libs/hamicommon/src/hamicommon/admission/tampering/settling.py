"""What becomes of a pod in which something undoes slices: refused, stripped of it, or let be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hamicommon.admission.tampering.findings import MAX_FINDINGS, Finding, refusal
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.tampering.strip import strip
from hamicommon.admission.verdicts import AdmissionResult, Reason, denied
from hamicommon.clipping import clip
from hamicommon.k8s.types import Json

AUDIT_KEY = "tampering"
_MOST = 1024
"""Characters of an audit annotation."""
_NOTHING: Mapping[str, str] = {}


class Settled(NamedTuple):
    """The refusal; or warnings for the user, and what the audit holds."""

    refused: AdmissionResult | None = None
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = _NOTHING


CLEAN = Settled()


def settle(pod: Json, found: Sequence[Finding], guard: Guard) -> Settled:
    """Refuses, or edits the pod, which is the caller's own (`filling.editable`)."""
    if not found:
        return CLEAN
    unknown = tuple(each.sentence for each in found if each.unknown)
    judged = [each for each in found if not each.unknown]
    mode = guard.policy.mode
    if not judged:
        return Settled(warnings=unknown)
    sentences = tuple(each.sentence for each in judged)
    if mode == "allow":
        return Settled(warnings=(*sentences, *unknown), audit=_audit("allowed", judged))
    refuses = mode == "refuse" or len(found) > MAX_FINDINGS
    kept = [each for each in judged if refuses or not each.strippable]
    if kept:
        return Settled(refused=denied(refusal(kept), _reason(kept)))
    strip(pod["spec"], judged)
    removed = tuple(f"removed: {sentence}" for sentence in sentences)
    return Settled(warnings=(*removed, *unknown), audit=_audit("stripped", judged))


def _reason(found: Sequence[Finding]) -> Reason:
    return "priority" if all(each.needs == "priority" for each in found) else "tampering"


def _audit(done: str, found: Sequence[Finding]) -> Mapping[str, str]:
    return {AUDIT_KEY: clip(f"{done}: {refusal(found)}", _MOST)}
