"""Removes what undoes slices from a pod, where the installation strips instead of refusing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hamicommon.admission.tampering.findings import Finding
from hamicommon.k8s.types import Json

_LISTS = {"variable": "env", "mount": "volumeMounts", "device": "volumeDevices"}


def strip(spec: Json, findings: Sequence[Finding]) -> None:
    """Edits the spec and its containers, which are the caller's own; what they hold is exchanged
    and not edited. `findings` are strippable and of this spec."""
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
        kept = _kept(container[listed], found_at)
        if kept:
            container[listed] = kept
        else:
            del container[listed]


def _kept(entries: Sequence[Any], found_at: Mapping[int, Finding]) -> list[Any]:
    """The entries but those found; a variable that gets another value stands once."""
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
