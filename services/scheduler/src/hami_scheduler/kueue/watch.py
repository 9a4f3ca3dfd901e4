"""Informers of Kueue's objects; they retry while the API server does not serve these kinds."""

from __future__ import annotations

from collections.abc import Callable

from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json
from hamicommon.kueue import API


class KueueWatch:
    """Informers of Workloads, AdmissionChecks and ResourceFlavors."""

    def __init__(self, informer: Callable[..., Informer]) -> None:
        """Create the informers; `informer` makes one from a path and handlers."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when an object changed on which an answer may depend."""

        def on_event(_new: Json, _old: Json | None = None) -> None:
            self.on_change()

        def of(kind: str, trim: Callable[[Json], Json] | None = None) -> Informer:
            return informer(f"{API}/{kind}", on_upsert=on_event, on_delete=on_event, trim=trim)

        self.workloads = of("workloads", trimmed_workload)
        self.checks = of("admissionchecks")
        self.flavors = of("resourceflavors")
        self.informers = {
            "workloads": self.workloads,
            "admission-checks": self.checks,
            "flavors": self.flavors,
        }


def trimmed_workload(workload: Json) -> Json:
    """Return the Workload; without our admission check, only its metadata and conditions."""
    status = workload.get("status") or {}
    if status.get("admissionChecks"):
        return workload
    return {
        "metadata": workload["metadata"],
        "spec": {},
        "status": {"conditions": status.get("conditions") or []},
    }
