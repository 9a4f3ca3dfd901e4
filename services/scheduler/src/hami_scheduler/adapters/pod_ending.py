"""Ends pods at the API server: their condition, then the deletion of this very pod."""

from __future__ import annotations

from typing import Any

from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json


class KubernetesPodEnder:
    """Port PodEnder."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> Json:
        """See the port."""
        return await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def set_conditions(self, pod: Json, conditions: list[dict[str, Any]]) -> None:
        """See the port."""
        metadata = pod["metadata"]
        # A merge patch replaces the list, so it counts only for the pod as it was read.
        guard = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        await self._api.patch(
            f"{_path(pod)}/status", {"metadata": guard, "status": {"conditions": conditions}}
        )

    async def delete(self, pod: Json, *, grace_s: int) -> None:
        """See the port."""
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_s,
            "preconditions": {"uid": pod["metadata"]["uid"]},
        }
        await self._api.delete(_path(pod), options)


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
