"""Check the bearer token of a call and the right that the call needs, and cache the answers.

The API server is asked which user has the token (TokenReview) and whether that user has the right
(SubjectAccessReview); see `reviews.py`. Answers are cached for a short time.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cachetools import TLRUCache

from hamicommon.errors import InvalidRequest, Unavailable

# A removed role or a revoked token remains valid for at most this long.
ALLOWED_S = 30.0
# Short, because a caller who is refused asks an administrator and retries.
REFUSED_S = 5.0
# Some 200 bytes each. A flood of invented tokens only evicts other answers, which are then asked
# for again.
MAX_ANSWERS = 1024
# Limits the load of invented tokens on the API server, and how long a caller waits for its turn.
MAX_CONCURRENT_REVIEWS = 8
REVIEW_TIMEOUT_S = 5.0
# A service account's token is some 1 KiB, an identity provider's with many groups some 8 KiB.
MAX_TOKEN_BYTES = 16 * 1024


class Unauthenticated(InvalidRequest):
    """Error 401: the call has no token, or the API server does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A right that RBAC grants: a verb on a resource of an API group, or on a path."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    """Namespace of the resource; empty: all namespaces, or the resource has none."""
    path: str = ""
    """Path of a nonResourceURL; then there is no group and no resource."""
    role: str
    """Name of the ClusterRole in `k8s/base` that grants the right, for the refusal's sentence."""

    def __str__(self) -> str:
        if self.path:
            return f"{self.verb} {self.path}"
        what = f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"
        return f"{what} in namespace {self.namespace}" if self.namespace else what


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCaller:
    """User whom the API server's TokenReview returned for a token."""

    username: str
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


class NotAllowed(InvalidRequest):
    """Error 403: the caller lacks the right."""

    def __init__(self, message: str, caller: ApiCaller | None = None) -> None:
        """`caller`: the caller who was refused; None if unknown."""
        super().__init__(message)
        self.caller = caller


class AccessReviews(Protocol):
    """Source of answers about callers: who has a token, and whether they have a right."""

    async def whose(self, token: str) -> ApiCaller:
        """Return the caller who has this token. Raises: Unauthenticated, Unavailable."""
        ...

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        """Whether the caller has this right. Raises: Unavailable."""
        ...


class Access:
    """Check tokens and rights through `AccessReviews`, caching its answers for a short time."""

    def __init__(
        self, reviews: AccessReviews, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns seconds."""
        self._reviews = reviews
        self._known: TLRUCache[tuple[bytes, Right], ApiCaller | InvalidRequest] = TLRUCache(
            MAX_ANSWERS, _expires_at_s, timer=clock
        )
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_REVIEWS)

    async def check(self, token: str, right: Right) -> ApiCaller:
        """Return the caller of the token if they have the right.

        Raises: Unauthenticated, NotAllowed.

        Raises: Unauthenticated, NotAllowed, Unavailable when the API server can't be asked.
        """
        if not token:
            raise Unauthenticated(
                f"no token was sent: send Authorization: Bearer TOKEN of a user who may {right}"
            )
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
        # Tokens themselves are not kept in memory.
        key = (hashlib.sha256(token.encode()).digest(), right)
        answer = self._known.get(key)
        if answer is None:
            try:
                async with asyncio.timeout(REVIEW_TIMEOUT_S), self._turns:
                    answer = self._known.get(key) or await self._ask(token, right)
            except TimeoutError:
                raise Unavailable(
                    f"the API server did not answer within {REVIEW_TIMEOUT_S:g} s to "
                    "identify the token; try again"
                ) from None
            self._known[key] = answer
        # A new error each time: one that is raised keeps its traceback.
        if isinstance(answer, NotAllowed):
            raise NotAllowed(str(answer), answer.caller)
        if isinstance(answer, InvalidRequest):
            raise type(answer)(str(answer))
        return answer

    async def _ask(self, token: str, right: Right) -> ApiCaller | InvalidRequest:
        try:
            caller = await self._reviews.whose(token)
        except Unauthenticated as exc:
            return exc
        if await self._reviews.may(caller, right):
            return caller
        return NotAllowed(
            f"{caller.username} may not {right}: ask an administrator to bind the "
            f"ClusterRole {right.role} to this user",
            caller,
        )


def _expires_at_s(_key: object, answer: ApiCaller | InvalidRequest, now_s: float) -> float:
    return now_s + (REFUSED_S if isinstance(answer, InvalidRequest) else ALLOWED_S)


def bearer_token(authorizations: Sequence[str]) -> str:
    """Return the bearer token of the headers; empty for none, several, or another scheme."""
    if len(authorizations) != 1:
        return ""
    scheme, _, token = authorizations[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")


def host_name(host: str) -> str:
    """Return the name or address in `host[:port]`, in lower case and without brackets.

    Returns the empty string for anything else, for example `user@localhost`.
    """
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found[1] or found[2]


def is_loopback(name: str) -> bool:
    """Return whether a host name is `localhost` or a loopback address.

    Ports that require no token answer under such names only: a page of another site can make a
    browser on this machine call them, under a name of that site that resolves to this machine.
    """
    return name == "localhost" or is_loopback_address(name)


def is_loopback_address(address: str) -> bool:
    """Return whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
