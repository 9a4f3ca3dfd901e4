"""Workloads of Kueue as its API server shows them."""

from typing import Any

from hamicommon.k8s.types import Json

CHECK = "fits-as-slices"
SINCE = "2026-11-30T12:00:00Z"


def template(**limits: object) -> Json:
    named = {f"nvidia.com/{key}": str(value) for key, value in limits.items()}
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": named}}]}}


def workload(
    name: str = "w", *sets: tuple[str, int, Json], state: str = "Pending", **fields: Any
) -> Json:
    """A Workload with its quota, of which our check is asked; `sets`: name, count, template."""
    made = sets or (("main", 1, template(gpu=1, gpumem=100)),)
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-30T11:59:00Z",
            **fields.pop("metadata", {}),
        },
        "spec": {
            "active": True,
            "queueName": "gpu",
            "podSets": [
                {"name": each, "count": count, "template": made_of} for each, count, made_of in made
            ],
            **fields.pop("spec", {}),
        },
        "status": {
            "conditions": [
                {"type": "QuotaReserved", "status": "True", "lastTransitionTime": SINCE}
            ],
            "admission": {
                "clusterQueue": "gpu",
                "podSetAssignments": [
                    {"name": each, "count": count, "flavors": {"nvidia.com/gpu": "a100"}}
                    for each, count, _ in made
                ],
            },
            "admissionChecks": [
                {"name": "others", "state": "Ready", "message": "", "lastTransitionTime": SINCE},
                {"name": CHECK, "state": state, "message": "", "lastTransitionTime": SINCE},
            ],
            **fields.pop("status", {}),
        },
    }
