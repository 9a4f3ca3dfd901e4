"""Who asks, and whose names they may see.

With tokens: who may read the whole ledger (ClusterRole hami-reader) sees all; who may ask at all
(ClusterRole hami-viewer) sees the names of the namespaces whose pods they may list. Without tokens
only callers on this machine are answered, and see all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hamicommon.access.checks import Access, ApiCaller, NotAllowed, Right, bearer_token
from hamicommon.access.loopback import host_name, is_loopback, is_loopback_address

READ_ALL = Right(verb="get", group="hami.io", resource="scheduler", role="hami-reader")
ASK = Right(verb="get", group="hami.io", resource="questions", role="hami-viewer")
MOST_NAMESPACES = 256
"""That are asked about for one answer; the names of further ones are not shown."""


def list_pods(namespace: str) -> Right:
    """What shows a namespace's pods to somebody."""
    return Right(verb="list", resource="pods", namespace=namespace, role="view")


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Somebody who may ask."""

    username: str
    """As the API server knows them; empty: a caller on this machine."""
    sees_all: bool
    token: str = ""

    def __repr__(self) -> str:
        return f"Viewer({self.username!r}, sees_all={self.sees_all})"


class Viewers(Protocol):
    """Finds out who asks."""

    async def viewer(self, sender: Sender) -> Viewer:
        """Raises: Unauthenticated, NotAllowed, Unavailable."""
        ...

    async def seen(self, viewer: Viewer, namespaces: Iterable[str]) -> frozenset[str]:
        """Those of the namespaces whose pods the viewer may list. Raises: Unavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """What a request has of its sender."""

    address: str
    host: str
    """Its Host header."""
    authorizations: Sequence[str] = ()


class LocalViewers:
    """Port Viewers, without tokens: callers on this machine, who see everything."""

    def __init__(self, *, published: bool = False) -> None:
        """`published`: only this machine and its containers reach the port (docker compose)."""
        self._published = published

    async def viewer(self, sender: Sender) -> Viewer:
        """See the port."""
        # The name too: a web page elsewhere can make a browser here send to us under its own name.
        name = host_name(sender.host)
        here = is_loopback_address(sender.address) and is_loopback(name)
        # A name without a dot is a container's: no page elsewhere can have one of these.
        among_containers = is_loopback(name) or (name != "" and "." not in name)
        if not here and not (self._published and among_containers):
            raise NotAllowed(
                "without HAMI_METRICS_API_TOKENS questions are answered to callers on the same"
                " machine alone, under the name localhost"
            )
        return Viewer(username="", sees_all=True)

    async def seen(self, viewer: Viewer, namespaces: Iterable[str]) -> frozenset[str]:
        """See the port."""
        return frozenset(namespaces)


class TokenViewers:
    """Port Viewers, by the API server's reviews."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def viewer(self, sender: Sender) -> Viewer:
        """See the port."""
        token = bearer_token(sender.authorizations)
        try:
            known = await self._access.check(token, READ_ALL)
        except NotAllowed:
            known = await self._access.check(token, ASK)
            return _viewer(known, token, sees_all=False)
        return _viewer(known, token, sees_all=True)

    async def seen(self, viewer: Viewer, namespaces: Iterable[str]) -> frozenset[str]:
        """See the port."""
        wanted = sorted(set(namespaces))
        if viewer.sees_all:
            return frozenset(wanted)
        return frozenset(
            [name for name in wanted[:MOST_NAMESPACES] if await self._may_list(viewer, name)]
        )

    async def _may_list(self, viewer: Viewer, namespace: str) -> bool:
        try:
            await self._access.check(viewer.token, list_pods(namespace))
        except NotAllowed:
            return False
        return True


def _viewer(known: ApiCaller, token: str, *, sees_all: bool) -> Viewer:
    return Viewer(username=known.username, sees_all=sees_all, token=token)
