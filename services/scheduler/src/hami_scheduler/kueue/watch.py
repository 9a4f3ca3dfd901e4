"""Informers of Kueue's objects; while their kinds are not served they try again."""

from __future__ import annotations

from collections.abc import Callable

from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json
from hamicommon.kueue import API


class KueueWatch:
    """Workloads, admission checks and flavors."""

    def __init__(self, informer: Callable[..., Informer]) -> None:
        """Create the instance; `informer` makes one of a path and handlers."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when something has changed that a verdict may depend on."""

        def changed(_new: Json, _old: Json | None = None) -> None:
            self.on_change()

        def of(kind: str, trim: Callable[[Json], Json] | None = None) -> Informer:
            return informer(f"{API}/{kind}", on_upsert=changed, on_delete=changed, trim=trim)

        self.workloads = of("workloads", trimmed_workload)
        self.checks = of("admissionchecks")
        self.flavors = of("resourceflavors")
        self.informers = {
            "workloads": self.workloads,
            "admission-checks": self.checks,
            "flavors": self.flavors,
        }


def trimmed_workload(workload: Json) -> Json:
    """Return the Workload; of one that no check is asked about, identity and conditions alone."""
    status = workload.get("status") or {}
    if status.get("admissionChecks"):
        return workload
    return {
        "metadata": workload["metadata"],
        "spec": {},
        "status": {"conditions": status.get("conditions") or []},
    }
