"""Implement `AccessReviews` by the API server's TokenReview and SubjectAccessReview."""

from __future__ import annotations

from typing import Any, cast

from hamicommon.access.checks import Access, ApiCaller, Right, Unauthenticated
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class KubernetesAccessReviews:
    """Ask the API server about tokens and rights."""

    def __init__(self, api: KubeApi, *, audience: str) -> None:
        """`audience`: audience that tokens must be for; empty: the API server's own."""
        self._api = api
        self._audience = audience

    async def whose(self, token: str) -> ApiCaller:
        """Return the owner of the token by a TokenReview. Raises: Unauthenticated, Unavailable."""
        try:
            user = await user_of(self._api, token, self._audience)
        except InvalidRequest as exc:
            wanted = f"; its audience must be {self._audience}" if self._audience else ""
            raise Unauthenticated(f"{exc}{wanted}") from None
        return ApiCaller(
            username=user["username"],
            uid=user.get("uid") or "",
            groups=user.get("groups") or (),
            extra=user.get("extra") or {},
        )

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        """Return whether a SubjectAccessReview allows the caller this right.

        Raises: Unavailable.
        """
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": caller.username,
                "uid": caller.uid,
                "groups": list(caller.groups),
                "extra": {name: list(values) for name, values in caller.extra.items()},
                **_attributes(right),
            },
        }
        status = (await self._api.create(_ACCESS_REVIEWS, body)).get("status") or {}
        return status.get("allowed") is True and not status.get("denied")


def _attributes(right: Right) -> Json:
    if right.path:
        return {"nonResourceAttributes": {"path": right.path, "verb": right.verb}}
    of = {"group": right.group, "resource": right.resource, "verb": right.verb}
    if right.namespace:
        of["namespace"] = right.namespace
    return {"resourceAttributes": of}


async def user_of(api: KubeApi, token: str, audience: str) -> dict[str, Any]:
    """Return `user` of the token's TokenReview; `audience` empty: the API server's own.

    Raises: InvalidRequest when the token is not good there, Unavailable.
    """
    spec: dict[str, Any] = {"token": token}
    if audience:
        spec["audiences"] = [audience]
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    status = (await api.create(_TOKEN_REVIEWS, body)).get("status") or {}
    meant = not audience or audience in (status.get("audiences") or ())
    if not status.get("authenticated") or not meant:
        raise InvalidRequest(f"the token is invalid: {status.get('error') or 'no reason given'}")
    return cast(dict[str, Any], status["user"])


# Access to /metrics where its page names tenants: the same right opens the pages of Kubernetes' own
# parts, so a Prometheus that reads those has it.
SCRAPE = Right(verb="get", path="/metrics", role="hami-scraper")


def scrape_access(api: KubeApi, *, audience: str) -> Access:
    """Return a check of callers by this API server.

    `audience` of tokens, empty: the server's own.
    """
    return Access(KubernetesAccessReviews(api, audience=audience))
