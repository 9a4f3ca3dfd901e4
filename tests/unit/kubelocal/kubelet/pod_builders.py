"""Pods as the API server gives them, in one line each."""

from typing import Any

from hamicommon.k8s.types import Json


def container(name: str = "main", **fields: Any) -> Json:
    """A container; `gpus=2` is short for its limit."""
    gpus = fields.pop("gpus", 0)
    limits = fields.pop("limits", {}) | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    resources = {"limits": limits, "requests": limits}
    return {"name": name, "image": "image", "resources": resources, **fields}


def pod(*containers: Json, uid: str = "uid-1", init: tuple[Json, ...] = (), **spec: Any) -> Json:
    """A pod named after its uid."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "default",
            "uid": uid,
            "labels": {"a": "b"},
        },
        "spec": {"containers": list(containers), "initContainers": list(init), **spec},
    }
