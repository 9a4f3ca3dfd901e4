"""Find entries of a ResourceQuota that look like limits of our resources but limit nothing.

The scheduler counts `limits.<memory or core resource>`, as a whole number, and Kubernetes itself
counts `requests.<count resource>`. The API server accepts every other spelling, but nothing counts
it. The webhook refuses a new one with the right spelling; `hamictl lint` and `hamictl doctor` name
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from hamicommon.admission.mistakes.typos import MAX_NAMES, meant_resource
from hamicommon.admission.verdicts import UNPROCESSABLE, AdmissionResult, deny
from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import family, parse_ceil, parse_int
from hamicommon.vendors.interface.vendor import ResourceNames
from hamicommon.vendors.registry import Vendors

COUNTED, BY_KUBERNETES = "limits.", "requests."
MAX_MEMORY_MIB = 2**30
"""Amount above which memory was probably written in bytes: 1 PiB, more than any cluster has."""
_KEY = re.compile(r"(limits?\.|requests?\.|)([^/]+/.+)", re.DOTALL)
_SHOWN = 100
"""Maximum number of characters of a key or an amount in a message."""


def quota_mistakes(quota: Mapping[str, Any], vendors: Vendors) -> dict[str, str]:
    """Return for each key of `spec.hard` that limits nothing a sentence: why, and the right key."""
    hard = (quota.get("spec") or {}).get("hard")
    if not isinstance(hard, dict):
        return {}
    found: dict[str, str] = {}
    for key, amount in islice(hard.items(), MAX_NAMES):
        right = _right(str(key), amount, vendors)
        if right:
            written = f"{clip(str(key), _SHOWN)}: {clip(str(amount), _SHOWN)}"
            found[str(key)] = f"{written} limits nothing: {right}"
    return found


def judge_quota(
    quota: Mapping[str, Any], before: Mapping[str, Any] | None, vendors: Vendors
) -> AdmissionResult:
    """Refuse a ResourceQuota with mistakes; those that `before` already had give warnings only."""
    mistakes = quota_mistakes(quota, vendors)
    known = set(quota_mistakes(before or {}, vendors).values())
    new = [text for text in mistakes.values() if text not in known]
    if new:
        return deny("; ".join(new), "quota-mistake", code=UNPROCESSABLE)
    return AdmissionResult(allowed=True, reason="quota", warnings=tuple(mistakes.values()))


def quota_units(vendors: Vendors) -> Iterator[tuple[str, int]]:
    """Return the resources that a quota may limit, each with its unit in MiB; 0 for cores.

    >>> from hamicommon.device_config import DeviceConfig
    >>> dict(quota_units(Vendors.from_config(DeviceConfig())))["cambricon.com/mlu.smlu.vmemory"]
    256
    """
    for vendor in vendors:
        names = vendor.resources
        if names.memory:
            yield names.memory, max(names.memory_factor, 1)
        if names.core:
            yield names.core, 0


def _right(key: str, amount: object, vendors: Vendors) -> str:
    """Return the key that would limit the resource; empty if `key` does, or is not one of ours."""
    match = _KEY.fullmatch(key)
    if match is None:
        return ""
    prefix, resource = match.groups()
    units = dict(quota_units(vendors))
    names = _names_of(resource, vendors)
    if names is None:
        return _for_unknown(prefix, resource, vendors)
    if resource in units:
        wrong = _wrong_amount(amount, units[resource])
        if prefix == COUNTED:
            return wrong[0] if wrong else ""
        if prefix in ("", BY_KUBERNETES):
            meant = wrong[1] if wrong else str(parse_int(amount))
            return f"write {COUNTED}{resource}" + (f": {meant}" if meant else "")
    elif resource == names.memory_percent:
        return f"write {COUNTED}{names.memory}, in MiB"
    elif resource != names.count:
        return "no quota can limit it"
    elif prefix == BY_KUBERNETES:
        return ""
    elif prefix in ("", COUNTED):
        return f"write {BY_KUBERNETES}{resource}"
    return f"was {_counted_key(resource, vendors)} meant?"


def _names_of(resource: str, vendors: Vendors) -> ResourceNames | None:
    """Return the vendor's resource names that include this one; None: no vendor's do."""
    return next((v.resources for v in vendors if resource in v.resources.all()), None)


def _for_unknown(prefix: str, resource: str, vendors: Vendors) -> str:
    meant = meant_resource(resource, vendors)
    if meant:
        return f"was {_counted_key(meant, vendors)} meant?"
    domain = resource.partition("/")[0]
    ours = [
        f"{COUNTED}{name}" for name, _ in quota_units(vendors) if name.partition("/")[0] == domain
    ]
    # Kubernetes counts what any device plugin serves by `requests.`, and nothing else of it.
    if prefix == BY_KUBERNETES or not ours:
        return ""
    return f"of {domain}, {' and '.join(dict.fromkeys(ours))} can be limited"


def _counted_key(resource: str, vendors: Vendors) -> str:
    if resource in dict(quota_units(vendors)):
        return f"{COUNTED}{resource}"
    names = _names_of(resource, vendors)
    if names is not None and resource == names.memory_percent:
        return f"{COUNTED}{names.memory}"
    return f"{BY_KUBERNETES}{resource}"


def _wrong_amount(amount: object, unit_mib: int) -> tuple[str, str] | None:
    """Return the expected form and the amount that was probably meant; None if it is right."""
    wanted = "expected a whole number of MiB, for example 20480"
    if not unit_mib:
        wanted = "expected a whole number of percent, for example 100 for one whole card"
    elif unit_mib > 1:
        wanted = f"expected a whole number of units of {unit_mib} MiB, for example 80"
    try:
        whole = parse_int(amount)
        if whole is not None and not (unit_mib and _is_in_bytes(amount, whole)):
            return None
        if not unit_mib or whole is None:
            return wanted, ""
        mib = parse_ceil(amount) // 2**20
    except InvalidRequest:
        return wanted, ""
    meant = str(mib // unit_mib)
    unit = "MiB" if unit_mib == 1 else f"{unit_mib} MiB"
    return f"the unit is {unit}: write {meant}", meant


def _is_in_bytes(amount: object, whole: int) -> bool:
    """Whether the amount was given in bytes.

    The API server may store 20480 as 20Ki, which was not.
    """
    return whole >= MAX_MEMORY_MIB or (family(amount) == "binary" and whole >= 2**20)
