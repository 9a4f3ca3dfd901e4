"""Annotations that only our services may set on a pod, whatever its vendor."""

from __future__ import annotations

from hamicommon.k8s.annotations import SCHEDULER_OWNED
from hamicommon.vendors.registry import Vendors


def scheduler_owned(vendors: Vendors) -> frozenset[str]:
    """SCHEDULER_OWNED with what every vendor writes on a placed pod; worked out once."""
    known: frozenset[str] | None = vendors.memory.get(scheduler_owned)
    if known is None:
        written = [(v.keys.to_allocate, v.keys.allocated, *v.keys.extra) for v in vendors]
        known = SCHEDULER_OWNED.union(key for each in written for key in each if key)
        vendors.memory[scheduler_owned] = known
    return known
