"""Identify viewers of pages, and find out whose pods' names they may read.

A bearer token is reviewed by the API server; a proxy in front of us names the user in a header. The
rights are those of the questions (`questions/asking.py`), kept a minute: who may not read all sees
the names of the namespaces whose pods they may list, and other holders by size. Without either the
pages are for this machine's own users: the loopback device, under a name of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Hashable
from typing import Protocol

from cachetools import TLRUCache
from hamicommon.access.checks import (
    MAX_TOKEN_BYTES,
    AccessReviews,
    ApiCaller,
    NotAllowed,
    Right,
    Unauthenticated,
    bearer_token,
    host_name,
    is_loopback,
)
from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest, Unavailable
from starlette.requests import Request

from hami_metrics.domain.redaction import EVERYBODY, PageViewer, ShowOwners
from hami_metrics.questions.asking import ASK, MAX_NAMESPACES, READ_ALL, list_pods

REVIEW_TTL_S = 60.0
REFUSAL_TTL_S = 5.0
MAX_KEPT = 65_536
MAX_REVIEWS_IN_FLIGHT = 8
REVIEW_TIMEOUT_S = 5.0
PROXY_USER = "x-forwarded-user"
RESERVED_PREFIX = "system:"
MAX_GROUPS_CHARACTERS = 16 * 1024
MAX_NAME_CHARACTERS = 1024


class Identity(Protocol):
    """Way to identify the viewer of a request."""

    async def viewer(self, request: Request, namespaces: Collection[str]) -> PageViewer:
        """Return the viewer; `namespaces`: those whose names the page might show.

        Raises: Unauthenticated, NotAllowed, Unavailable.
        """
        ...


class LoopbackOnly:
    """Identity of callers on this machine, who see everything.

    A page of another site must not read ours through a name that it makes point here, so a name of
    this machine is wanted.
    """

    async def viewer(self, request: Request, namespaces: Collection[str]) -> PageViewer:
        """Return the viewer of a request from this machine."""
        del namespaces
        if not is_loopback(host_name(request.headers.get("host", ""))):
            raise NotAllowed(
                "these pages require no token, so they answer only at localhost and 127.0.0.1: "
                "open one of these, or set HAMI_METRICS_PAGES_IDENTITY"
            )
        return EVERYBODY


class ReviewedIdentity:
    """Identity by the API server's reviews, cached for a short time."""

    def __init__(
        self,
        reviews: AccessReviews,
        *,
        proxy: bool,
        groups_header: str = "",
        show: ShowOwners = ShowOwners.SIZES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`proxy`: trust the header in which a proxy, the only client, names the user.

        `groups_header`: the header in which that proxy names the user's groups; empty: the user
        has none, whatever a client sends.
        """
        self._reviews = reviews
        self._proxy = proxy
        self._groups_header = groups_header
        self._show = show
        self._known: TLRUCache[Hashable, ApiCaller | bool | str] = TLRUCache(
            MAX_KEPT, ttu=_expires_at_s, timer=clock
        )
        """Callers by token, or why a token was refused, and the answers about rights."""
        self._turns = asyncio.Semaphore(MAX_REVIEWS_IN_FLIGHT)

    async def viewer(self, request: Request, namespaces: Collection[str]) -> PageViewer:
        """Return the viewer that the request's token or header names."""
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT_S):
                caller = (
                    self._caller_from_proxy(request)
                    if self._proxy
                    else await self._by_token(request)
                )
                return await self._viewer(caller, namespaces)
        except TimeoutError:
            raise Unavailable(
                f"the API server did not answer within {REVIEW_TIMEOUT_S:g} s to "
                "identify you; try again"
            ) from None

    def _caller_from_proxy(self, request: Request) -> ApiCaller:
        users = request.headers.getlist(PROXY_USER)
        if len(users) != 1 or not users[0] or len(users[0]) > MAX_NAME_CHARACTERS:
            raise Unauthenticated(
                f"the proxy sent no user: configure it to set the header {PROXY_USER}"
            )
        groups = self._groups(request)
        reserved = [name for name in (users[0], *groups) if name.startswith(RESERVED_PREFIX)]
        if reserved:
            raise Unauthenticated(
                f"the proxy named {clip(reserved[0])!r}: names that begin with"
                f" {RESERVED_PREFIX!r} are Kubernetes' own; map the user or group to another name"
            )
        return ApiCaller(username=users[0], groups=(*groups, "system:authenticated"))

    def _groups(self, request: Request) -> list[str]:
        if not self._groups_header:
            return []
        values = request.headers.getlist(self._groups_header)
        if len(values) > 1:
            # The client's own header, and the proxy's behind it.
            raise Unauthenticated(
                f"the request has {len(values)} headers {self._groups_header}: the proxy has to"
                " replace the header that a client sends"
            )
        text = values[0] if values else ""
        if len(text) > MAX_GROUPS_CHARACTERS:
            raise Unauthenticated(
                f"header {self._groups_header} has {len(text)} characters: at most"
                f" {MAX_GROUPS_CHARACTERS} are read"
            )
        return [group.strip() for group in text.split(",") if group.strip()]

    async def _by_token(self, request: Request) -> ApiCaller:
        token = bearer_token(request.headers.getlist("authorization"))
        if not token or len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated("no token was sent: send Authorization: Bearer TOKEN")
        # Tokens themselves are not kept in memory.
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if isinstance(known, ApiCaller):
            return known
        if isinstance(known, str):
            raise Unauthenticated(known)
        async with self._turns:
            try:
                caller = await self._reviews.whose(token)
            except InvalidRequest as exc:
                self._known[key] = str(exc)
                raise
        self._known[key] = caller
        return caller

    async def _viewer(self, caller: ApiCaller, namespaces: Collection[str]) -> PageViewer:
        if await self._may(caller, READ_ALL):
            return PageViewer(name=caller.username)
        if not await self._may(caller, ASK):
            raise NotAllowed(
                f"{caller.username} may not {ASK}: ask an administrator to bind the ClusterRole"
                f" {ASK.role} to this user",
                caller,
            )
        asked = sorted(set(namespaces))[:MAX_NAMESPACES]
        answers = await asyncio.gather(*(self._may(caller, list_pods(name)) for name in asked))
        seen = frozenset(name for name, may in zip(asked, answers, strict=True) if may)
        return PageViewer(name=caller.username, namespaces=seen, show=self._show)

    async def _may(self, caller: ApiCaller, right: Right) -> bool:
        key = (caller.username, caller.uid, tuple(caller.groups), right)
        known = self._known.get(key)
        if isinstance(known, bool):
            return known
        async with self._turns:
            may = await self._reviews.may(caller, right)
        self._known[key] = may
        return may


def _expires_at_s(_key: object, answer: ApiCaller | bool | str, now_s: float) -> float:
    return now_s + (REFUSAL_TTL_S if isinstance(answer, str) else REVIEW_TTL_S)
