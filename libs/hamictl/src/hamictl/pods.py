"""Creating pods at an API server, for `hamictl apply` and the demo."""

from __future__ import annotations

from hamicommon.errors import Conflict
from hamicommon.k8s.client import KubeApi, PatchType
from hamicommon.k8s.types import Json


async def apply_pod(api: KubeApi, pod: Json) -> str:
    """Creates the pod; an existing one gets its labels and annotations; returns what was done."""
    metadata = pod["metadata"]
    collection = f"/api/v1/namespaces/{metadata['namespace']}/pods"
    try:
        await api.create(collection, pod)
    except Conflict:
        changes = {
            "metadata": {
                "labels": metadata.get("labels") or {},
                "annotations": metadata.get("annotations") or {},
            }
        }
        await api.patch(f"{collection}/{metadata['name']}", changes, PatchType.MERGE)
        return "exists (labels and annotations updated; delete it first to change its spec)"
    return "created"
