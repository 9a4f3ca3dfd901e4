"""Who may ask the operator API, and for what: the cluster's own RBAC decides.

In: the bearer token of a call and the role that the call needs. The API server is asked whose token
it is (TokenReview) and whether they may (SubjectAccessReview) `get` or `update` the resource
`scheduler.hami.io`, which exists for this alone: administrators grant it with the ClusterRoles
`hami-reader` and `hami-operator`. `operator_access.py` asks for every call. The extender's verbs
are served on another port, to a client certificate, and no token opens them.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from hamicommon.errors import InvalidRequest, Unavailable

GROUP = "hami.io"
RESOURCE = "scheduler"

# A role that was taken away, or a token that was revoked, is good for so long at most.
ALLOWED_S = 30.0
# Short, because a caller who is refused asks an administrator and tries again.
REFUSED_S = 5.0
# Some 200 bytes each. A flood of invented tokens makes others be asked about again, no more.
CACHE_MOST = 1024
# What invented tokens may cost the API server at once, and what a caller waits for its turn.
REVIEWS_AT_ONCE = 8
REVIEW_TIMEOUT_S = 5.0
# A service account's token is some 1 KiB, an identity provider's with many groups some 8 KiB.
TOKEN_MOST = 16 * 1024


class Role(StrEnum):
    """What a call needs; the values are the verbs that RBAC grants."""

    READ = "get"
    OPERATE = "update"


class Unauthenticated(InvalidRequest):
    """401: there is no token, or the API server does not know it."""


class NotAllowed(InvalidRequest):
    """403: the caller is known and lacks the role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCaller:
    """Whose token it is, by the API server's review."""

    username: str
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


class AccessReviews(Protocol):
    """Asks the API server about callers."""

    async def whose(self, token: str) -> ApiCaller:
        """Raises: Unauthenticated, Unavailable."""
        ...

    async def may(self, caller: ApiCaller, role: Role) -> bool:
        """Raises: Unavailable."""
        ...


class Access:
    """Answers from the API server, kept for a short time."""

    def __init__(
        self, reviews: AccessReviews, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds."""
        self._reviews = reviews
        self._clock = clock
        self._known: OrderedDict[tuple[bytes, Role], tuple[float, ApiCaller | InvalidRequest]] = (
            OrderedDict()
        )
        self._turns = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def check(self, token: str, role: Role) -> ApiCaller:
        """Who calls, if they may.

        Raises: Unauthenticated, NotAllowed, Unavailable when the API server can't be asked.
        """
        if not token:
            raise Unauthenticated(
                "a token is wanted: Authorization: Bearer TOKEN (docs/hamictl-on-a-cluster.md)"
            )
        if len(token) > TOKEN_MOST:
            raise Unauthenticated(f"the token is longer than {TOKEN_MOST} bytes")
        # Tokens themselves are not kept in memory.
        key = (hashlib.sha256(token.encode()).digest(), role)
        answer = self._kept(key)
        if answer is None:
            try:
                async with asyncio.timeout(REVIEW_TIMEOUT_S), self._turns:
                    answer = self._kept(key) or await self._ask(token, role)
            except TimeoutError:
                raise Unavailable(
                    f"the API server did not answer within {REVIEW_TIMEOUT_S:g} s whose token it is"
                ) from None
            self._keep(key, answer)
        if isinstance(answer, InvalidRequest):
            raise type(answer)(str(answer))
        return answer

    async def _ask(self, token: str, role: Role) -> ApiCaller | InvalidRequest:
        try:
            caller = await self._reviews.whose(token)
        except Unauthenticated as exc:
            return exc
        if await self._reviews.may(caller, role):
            return caller
        return NotAllowed(
            f"{caller.username} may not {role} {RESOURCE}.{GROUP}: an administrator binds the "
            f"ClusterRole {'hami-reader' if role is Role.READ else 'hami-operator'} to this user"
        )

    def _kept(self, key: tuple[bytes, Role]) -> ApiCaller | InvalidRequest | None:
        found = self._known.get(key)
        if found is None or found[0] <= self._clock():
            return None
        self._known.move_to_end(key)
        return found[1]

    def _keep(self, key: tuple[bytes, Role], answer: ApiCaller | InvalidRequest) -> None:
        lasts_s = REFUSED_S if isinstance(answer, InvalidRequest) else ALLOWED_S
        self._known[key] = (self._clock() + lasts_s, answer)
        self._known.move_to_end(key)
        while len(self._known) > CACHE_MOST:
            self._known.popitem(last=False)
