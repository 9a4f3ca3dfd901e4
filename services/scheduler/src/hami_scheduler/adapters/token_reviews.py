"""Asks the API server whose token it is, on which node its pod runs and what its owner may do.

The ports are `logins.TokenReviews` (the bus) and `access.AccessReviews` (the operator API).
"""

from __future__ import annotations

from typing import Any, cast

from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.k8s.client import KubeApi

from hami_scheduler.bus.auth import Bearer
from hami_scheduler.ports.access import GROUP, RESOURCE, ApiCaller, Role, Unauthenticated

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_EXTRA = "authentication.kubernetes.io/"


class KubernetesTokenReviews:
    """TokenReview, and where it does not name the node (Kubernetes < 1.30) the pod itself."""

    def __init__(self, api: KubeApi, *, audience: str) -> None:
        self._api = api
        self._audience = audience

    async def review(self, token: str) -> Bearer:
        """See the port."""
        user = await _user_of(self._api, token, self._audience)
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
            pod = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{pods[0]}")
        except NotFound:
            return None
        node = (pod.get("spec") or {}).get("nodeName")
        return NodeName(node) if node and pod["metadata"]["uid"] == uids[0] else None


class KubernetesAccessReviews:
    """TokenReview and SubjectAccessReview."""

    def __init__(self, api: KubeApi, *, audience: str) -> None:
        """`audience`: of the tokens; empty means the API server's own."""
        self._api = api
        self._audience = audience

    async def whose(self, token: str) -> ApiCaller:
        """See the port."""
        try:
            user = await _user_of(self._api, token, self._audience)
        except InvalidRequest as exc:
            wanted = f"; its audience must be {self._audience}" if self._audience else ""
            raise Unauthenticated(f"{exc}{wanted}") from None
        return ApiCaller(
            username=user["username"],
            uid=user.get("uid") or "",
            groups=user.get("groups") or (),
            extra=user.get("extra") or {},
        )

    async def may(self, caller: ApiCaller, role: Role) -> bool:
        """See the port."""
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": caller.username,
                "uid": caller.uid,
                "groups": list(caller.groups),
                "extra": {name: list(values) for name, values in caller.extra.items()},
                "resourceAttributes": {
                    "group": GROUP,
                    "resource": RESOURCE,
                    "verb": role.value,
                },
            },
        }
        status = (await self._api.create(_ACCESS_REVIEWS, body)).get("status") or {}
        return status.get("allowed") is True and not status.get("denied")


async def _user_of(api: KubeApi, token: str, audience: str) -> dict[str, Any]:
    """The `user` of a TokenReview. Raises: InvalidRequest when the token is not good there."""
    spec: dict[str, Any] = {"token": token}
    if audience:
        spec["audiences"] = [audience]
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    status = (await api.create(_TOKEN_REVIEWS, body)).get("status") or {}
    meant = not audience or audience in (status.get("audiences") or ())
    if not status.get("authenticated") or not meant:
        raise InvalidRequest(f"the token is not good: {status.get('error') or 'not known'}")
    return cast(dict[str, Any], status["user"])
