"""Answer a question for a caller: one page, without names that the caller may not see.

With tokens: who may read the whole ledger (ClusterRole hami-reader) sees all; who may ask at all
(ClusterRole hami-viewer) sees the names of the namespaces whose pods they may list. Without tokens
only callers on this machine are answered, and see all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hamicommon.access.checks import (
    Access,
    ApiCaller,
    NotAllowed,
    Right,
    bearer_token,
    host_name,
    is_loopback,
    is_loopback_address,
)
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.questions import PAGE_ROWS, Answer, Audience, Question, answer, question

from hami_metrics.domain.redaction import WITHHELD, ShowOwners, redact_rows

READ_ALL = Right(verb="get", group="hami.io", resource="scheduler", role="hami-reader")
ASK = Right(verb="get", group="hami.io", resource="questions", role="hami-viewer")
MAX_NAMESPACES = 256
"""Maximum number of namespaces reviewed for one answer; names of further ones are hidden."""


def list_pods(namespace: str) -> Right:
    """Return the right to list the pods of a namespace."""
    return Right(verb="list", resource="pods", namespace=namespace, role="view")


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Caller that may ask questions."""

    username: str
    """User name at the API server; empty: a caller on this machine."""
    sees_all: bool
    token: str = ""

    def __repr__(self) -> str:
        return f"Viewer({self.username!r}, sees_all={self.sees_all})"


class Viewers(Protocol):
    """Way to identify callers."""

    async def viewer(self, sender: Sender) -> Viewer:
        """Return the caller who sent a request.

        Raises: Unauthenticated, NotAllowed, Unavailable.
        """
        ...

    async def visible_namespaces(self, viewer: Viewer, namespaces: Iterable[str]) -> frozenset[str]:
        """Return the namespaces whose pods the caller may list. Raises: Unavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Facts by which the sender of a request is identified."""

    address: str
    host: str
    """Host header of the request."""
    authorizations: Sequence[str] = ()


class LocalViewers:
    """Callers on this machine without tokens, who see everything."""

    def __init__(self, *, published: bool = False) -> None:
        """`published`: whether the port is reachable only from this machine (docker compose)."""
        self._published = published

    async def viewer(self, sender: Sender) -> Viewer:
        """Return the caller on this machine. Raises: NotAllowed for one from elsewhere."""
        # The name too: a web page elsewhere can make a browser here send to us under its own name.
        name = host_name(sender.host)
        here = is_loopback_address(sender.address) and is_loopback(name)
        # A name without a dot is a container's: no page elsewhere can have one of these.
        among_containers = is_loopback(name) or (name != "" and "." not in name)
        if not here and not (self._published and among_containers):
            raise NotAllowed(
                "without HAMI_METRICS_API_TOKENS questions are answered to callers on the same"
                " machine only, under the name localhost: set it, or ask from there"
            )
        return Viewer(username="", sees_all=True)

    async def visible_namespaces(self, viewer: Viewer, namespaces: Iterable[str]) -> frozenset[str]:
        """Return all namespaces."""
        return frozenset(namespaces)


class TokenViewers:
    """Callers identified by the API server's reviews of their tokens."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def viewer(self, sender: Sender) -> Viewer:
        """Return the caller of the token. Raises: Unauthenticated, NotAllowed, Unavailable."""
        token = bearer_token(sender.authorizations)
        try:
            known = await self._access.check(token, READ_ALL)
        except NotAllowed:
            known = await self._access.check(token, ASK)
            return _viewer(known, token, sees_all=False)
        return _viewer(known, token, sees_all=True)

    async def visible_namespaces(self, viewer: Viewer, namespaces: Iterable[str]) -> frozenset[str]:
        """Return the namespaces whose pods the caller may list, by reviews."""
        wanted = sorted(set(namespaces))
        if viewer.sees_all:
            return frozenset(wanted)
        return frozenset(
            [name for name in wanted[:MAX_NAMESPACES] if await self._may_list(viewer, name)]
        )

    async def _may_list(self, viewer: Viewer, namespace: str) -> bool:
        try:
            await self._access.check(viewer.token, list_pods(namespace))
        except NotAllowed:
            return False
        return True


def _viewer(known: ApiCaller, token: str, *, sees_all: bool) -> Viewer:
    return Viewer(username=known.username, sees_all=sees_all, token=token)


_MAX_CHARACTERS = 8192
"""Maximum characters of an encrypted position."""


class Seal:
    """Encryption of positions with a key derived from a secret that all replicas share."""

    def __init__(self, secret: str) -> None:
        key = HKDF(SHA256(), 32, salt=None, info=b"hami-metrics positions").derive(secret.encode())
        self._fernet = Fernet(base64.urlsafe_b64encode(key))

    def close(self, position: str) -> str:
        """Encrypt a position in an answer."""
        return self._fernet.encrypt(position.encode()).decode()

    def open(self, sealed: str) -> str:
        """Decrypt a position that a caller sent. Raises: InvalidRequest if it is not ours."""
        try:
            if len(sealed) > _MAX_CHARACTERS:
                raise InvalidToken
            return self._fernet.decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise InvalidRequest(
                "after: this key is not from this API; leave it out to start at the first page"
            ) from None


class ReadConnections(Protocol):
    """Source of connections that read the ledger."""

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Return a connection of the pool. Raises: Unavailable."""
        ...


class Asking:
    """Service that answers named questions."""

    def __init__(
        self, ledger: ReadConnections, viewers: Viewers, seal: Seal, show: ShowOwners
    ) -> None:
        self._ledger = ledger
        self._viewers = viewers
        self._seal = seal
        self._show = show

    async def ask(
        self,
        viewer: Viewer,
        name: str,
        parameters: Mapping[str, object],
        *,
        limit: int = PAGE_ROWS,
        after: str | None = None,
    ) -> Answer:
        """Return one page of the answer; `Answer.next` is encrypted.

        Raises: NotFound, InvalidRequest, NotAllowed, Unavailable.
        """
        asked = question(name)
        await self._check(viewer, asked, parameters)
        position = None if after is None else self._seal.open(after)
        async with self._ledger.connection() as connection:
            found = await answer(connection, name, parameters, limit=limit, after=position)
        if found.next is not None:
            found = replace(found, next=self._seal.close(found.next))
        return found if viewer.sees_all else await self._for(viewer, found)

    async def _check(
        self, viewer: Viewer, asked: Question, parameters: Mapping[str, object]
    ) -> None:
        """Check that the caller may see the names in the parameters. Raises: NotAllowed."""
        if viewer.sees_all:
            return
        if asked.audience is Audience.CLUSTER:
            raise NotAllowed(
                f"{viewer.username} may not ask {asked.name}: it is about all namespaces, which"
                f" takes the ClusterRole hami-reader"
            )
        if self._show is ShowOwners.NAMES:
            return
        namespace = str(parameters.get("namespace") or "")
        if namespace and not await self._viewers.visible_namespaces(viewer, [namespace]):
            raise NotAllowed(f"{viewer.username} may not list pods in namespace {namespace[:253]}")
        if parameters.get("pod") and not namespace:
            raise NotAllowed(
                f"parameter pod: {viewer.username} may list pods of some namespaces only: add"
                " the parameter namespace"
            )

    async def _for(self, viewer: Viewer, found: Answer) -> Answer:
        namespaces = {row["namespace"] for row in found.rows if row.get("namespace")}
        seen = await self._viewers.visible_namespaces(viewer, namespaces)
        if seen == namespaces:
            return found
        rows = redact_rows(found.question, found.rows, seen=seen, show=self._show)
        withheld = {
            column.name: WITHHELD
            for column in found.question.columns
            if column.names_somebody and self._show is not ShowOwners.NAMES
        }
        return replace(found, rows=rows, unknown={**found.unknown, **withheld})
