"""Admission's answer to a pod or a ResourceQuota without a cluster, for `hamictl lint`.

Of a queue's Job it names what Kueue counts wrongly.

In: pods as people write them, or lines `{"name": ..., "pod": {...}}`; out: `{"name", "allowed",
"message", "warnings", "patch"}`. The verdict is `mutation.mutate`'s own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from hamicommon.admission.mistakes.queued_jobs import find_miscounts, is_queued
from hamicommon.admission.mistakes.quotas import judge_quota
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import (
    ANY,
    AdmissionCircumstances,
    AdmissionResult,
    AdmissionRules,
)
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

QUOTA = "ResourceQuota"
_WANTED = 'expected a line like {"name": ..., "pod": {...}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Linter:
    """Judge objects by one installation's rules, each independently of the others."""

    rules: AdmissionRules
    about: AdmissionCircumstances = ANY

    def verdict(self, item: Json) -> AdmissionResult:
        """Return what the webhook would answer to a pod or a ResourceQuota."""
        if is_queued(item):
            warnings = find_miscounts(item, self.rules.vendors)
            return AdmissionResult(allowed=True, reason="queued-job", warnings=warnings)
        if is_quota(item):
            return judge_quota(item, None, self.rules.vendors)
        return mutate(item, self.rules, self.about)

    def answer(self, name: str, pod: Json) -> Json:
        """Return the webhook's answer to a pod as JSON."""
        return as_json(name, self.verdict(pod))

    def answer_line(self, line: str | bytes, number: int) -> Json:
        """Return the answer to one line of input; an unreadable line is refused with its number."""
        name = ""
        try:
            case = _case(line)
            name = str(case.get("name", ""))
            pod = case.get("pod")
            if not isinstance(pod, dict):
                found = repr(pod)[:60] if "pod" in case else "absent"
                raise InvalidRequest(f"pod is {found}: {_WANTED}")
        except InvalidRequest as exc:
            message = f"line {number}: {exc}"
            return as_json(name, AdmissionResult(allowed=False, reason="no-pod", message=message))
        return self.answer(name, pod)


def is_quota(item: Json) -> bool:
    """Whether the object is a ResourceQuota."""
    return item.get("kind") == QUOTA


def as_json(name: str, verdict: AdmissionResult) -> Json:
    """Return a verdict as JSON for programs."""
    return {
        "name": name,
        "allowed": verdict.allowed,
        "message": verdict.message,
        "warnings": list(verdict.warnings),
        "patch": verdict.patch,
    }


def _case(line: str | bytes) -> Mapping[str, Any]:
    try:
        case: object = orjson.loads(line)
    except ValueError as exc:
        raise InvalidRequest(f"not JSON: {exc}") from exc
    if not isinstance(case, dict):
        raise InvalidRequest(_WANTED)
    return case
