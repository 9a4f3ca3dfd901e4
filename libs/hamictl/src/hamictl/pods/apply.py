"""Creating pods at an API server, for `hamictl apply` and the demo."""

from __future__ import annotations

from hamicommon.errors import Conflict, InvalidRequest
from hamicommon.k8s.client import KubeApi, PatchType
from hamicommon.k8s.quantities import canonical
from hamicommon.k8s.types import Json, JsonMapping


async def apply_pod(api: KubeApi, pod: Json) -> str:
    """Creates the pod; an existing one gets its labels and annotations; returns what was done.

    Raises: Conflict where the existing one asks for something else, which only a new pod can.
    """
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
        path = f"{collection}/{metadata['name']}"
        existing = await api.patch(path, changes, PatchType.MERGE)
        if differing := differences(pod, existing):
            raise Conflict(
                f"exists with another spec ({', '.join(differing)}), which is not changed: "
                "delete it first; labels and annotations are updated"
            ) from None
        return "exists (labels and annotations updated)"
    return "created"


def differences(pod: JsonMapping, existing: JsonMapping) -> list[str]:
    """Where containers of an existing pod are not as the manifest wants them.

    Only what the manifest states is compared, and of that what neither the API server nor
    admission rewrites: images, commands, arguments and limits, whose amounts may be written again.
    """
    there = {each["name"]: each for each in _containers(existing)}
    found = []
    for wanted in _containers(pod):
        name = wanted["name"]
        if name not in there:
            found.append(f"container {name}")
            continue
        found += [
            f"{key} of {name}"
            for key in ("image", "command", "args")
            if key in wanted and wanted[key] != there[name].get(key)
        ]
        held = (there[name].get("resources") or {}).get("limits") or {}
        limits = (wanted.get("resources") or {}).get("limits") or {}
        found += [
            f"{key} of {name}"
            for key, amount in limits.items()
            if key in held and _written(amount) != _written(held[key])
        ]
    return found


def _containers(pod: JsonMapping) -> list[Json]:
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _written(amount: object) -> str:
    """As the API server writes it; what is no amount stays as it is."""
    try:
        return canonical(str(amount))
    except InvalidRequest:
        return str(amount)
