"""Rules of container resources: amounts, names, and requests against limits."""

from __future__ import annotations

import re

from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import Cause
from kubelocal.apiserver.validation import names
from kubelocal.apiserver.validation.causes import invalid, required

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})


def is_extended(name: str) -> bool:
    """Whether a resource is counted in whole units by a device plugin or by hand."""
    if "/" not in name or name.startswith("requests."):
        return False
    return re.search(r"(^|\.)kubernetes\.io/", name) is None


def validate_requirements(field: str, resources: Json) -> list[Cause]:
    """The broken rules of a container's `resources`."""
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    causes = _amounts(f"{field}.limits", limits)
    for name, request in requests.items():
        causes += _amount(f"{field}.requests", name, request)
        causes += _against_limit(field, name, request, limits.get(name))
    return causes


def _amounts(field: str, amounts: Json) -> list[Cause]:
    return [cause for name, text in amounts.items() for cause in _amount(field, name, text)]


def _amount(field: str, name: str, text: str) -> list[Cause]:
    at = f"{field}[{name}]"
    causes = [invalid(at, name, complaint) for complaint in names.qualified(name)]
    standard = name in _STANDARD or name.startswith(("hugepages-", "attachable-volumes-"))
    if "/" not in name and not standard:
        causes.append(invalid(at, name, "must be a standard resource type or fully qualified"))
        causes.append(invalid(at, name, "must be a standard resource for containers"))
    amount = parse_exact(text)
    if amount < 0:
        causes.append(invalid(at, text, "must be greater than or equal to 0"))
    elif amount.denominator != 1 and (is_extended(name) or name.startswith("hugepages-")):
        causes.append(invalid(at, text, "must be an integer"))
    return causes


def _against_limit(field: str, name: str, request: str, limit: str | None) -> list[Cause]:
    fixed = is_extended(name) or name.startswith("hugepages-")
    if limit is None:
        if not fixed:
            return []
        return [required(f"{field}.limits", "Limit must be set for non overcommitable resources")]
    if fixed and parse_exact(request) != parse_exact(limit):
        return [invalid(f"{field}.requests", request, f"must be equal to {name} limit")]
    if parse_exact(request) > parse_exact(limit):
        return [
            invalid(f"{field}.requests", request, f"must be less than or equal to {name} limit")
        ]
    return []
