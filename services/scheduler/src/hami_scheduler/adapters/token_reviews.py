"""Asks the API server whose token it is and on which node its pod runs, for logins to the bus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hamicommon.access.reviews import user_of
from hamicommon.domain.ids import NodeName
from hamicommon.errors import NotFound
from hamicommon.k8s.client import KubeApi

from hami_scheduler.bus.auth import Bearer

_EXTRA = "authentication.kubernetes.io/"


@dataclass(eq=False)
class KubernetesTokenReviews:
    """TokenReview, and where it does not name the node (Kubernetes < 1.30) the pod itself."""

    api: KubeApi
    audience: str

    async def review(self, token: str) -> Bearer:
        """Review a token. Raises: InvalidRequest if it is not valid for the bus, Unavailable."""
        user = await user_of(self.api, token, self.audience)
        return Bearer(username=user["username"], node=await self._node_of(user))

    async def _node_of(self, user: dict[str, Any]) -> NodeName | None:
        extra = user.get("extra") or {}
        named = extra.get(f"{_EXTRA}node-name")
        if named:
            return NodeName(named[0])
        pods, uids = extra.get(f"{_EXTRA}pod-name"), extra.get(f"{_EXTRA}pod-uid")
        if not pods or not uids:
            return None
        namespace = user["username"].split(":")[2]
        try:
            pod = await self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pods[0]}")
        except NotFound:
            return None
        node = (pod.get("spec") or {}).get("nodeName")
        return NodeName(node) if node and pod["metadata"]["uid"] == uids[0] else None
