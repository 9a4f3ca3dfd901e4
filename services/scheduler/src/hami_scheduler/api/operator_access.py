"""Stands before the operators' API: every call has a caller, and none passes without the right.

On the operators' port the caller is whose token it is (`Role`); where kube-scheduler's
port, which is on loopback, serves the API too, anybody. Calls that are more than a look are in the
log with their caller, and those that change something go to the journal of calls. A replica that
stands by answers what it reads from the ledger, and refuses the rest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hamicommon.access.checks import Access, NotAllowed, Right, bearer_token
from hamicommon.clipping import clip
from hamicommon.errors import HamiError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hami_scheduler.activity import Activity
from hami_scheduler.api.http import refuse
from hami_scheduler.api.operator_calls import OperatorCalls, note_refused
from hami_scheduler.ports.ledger import CallSource, OperatorCall, OperatorCaller

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.housekeeping import PostgresCallJournal

logger = logging.getLogger(__name__)

CALLER = "caller"
"""Of the request's state: its `OperatorCaller`, for the routes."""

GROUP = "hami.io"
RESOURCE = "scheduler"
"""This resource exists for the rights alone: administrators grant it with the ClusterRoles
`hami-reader` and `hami-operator`."""
_FROM_MEMORY = ("/v1/simulate", "/v1/vain-settings")
"""Calls about what only the active replica follows."""
_SEND = re.compile(r"/v1/dead-letters/([^/]+)/send")
_GROUPS_CHARACTERS = 1024
"""Of the groups in a line of the log; an identity provider may name hundreds."""


class Role(StrEnum):
    """What a call needs; the values are the verbs that RBAC grants."""

    READ = "get"
    OPERATE = "update"

    @property
    def right(self) -> Right:
        """What the API server is asked about."""
        return _RIGHTS[self]


_RIGHTS = {
    role: Right(verb=role.value, group=GROUP, resource=RESOURCE, role=name)
    for role, name in ((Role.READ, "hami-reader"), (Role.OPERATE, "hami-operator"))
}

Identify = Callable[[Scope, Role], Awaitable[OperatorCaller]]
"""Who calls, if they may. Raises: Unauthenticated, NotAllowed, Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What a call does."""

    name: str
    role: Role
    logged: bool
    """More than a look."""
    object: str = ""
    """What the path names: the number of a letter."""


def verb_of(method: str, path: str) -> Verb:
    """What a call needs: everything that is not known to read alone is operating."""
    if method in ("GET", "HEAD"):
        return Verb(name="get", role=Role.READ, logged=False)
    # A body that is asked about; it changes nothing.
    if path == "/v1/simulate":
        return Verb(name="simulate", role=Role.READ, logged=True)
    name, about = f"{method} {clip(path)}", ""
    if method == "POST" and path == "/v1/adopt":
        name = "adopt"
    elif method == "POST" and (found := _SEND.fullmatch(path)):
        name, about = "send-dead-letter", clip(found[1])
    return Verb(name=name, role=Role.OPERATE, logged=True, object=about)


def by_token(access: Access) -> Identify:
    """Whose token it is, by the API server."""

    async def identify(scope: Scope, role: Role) -> OperatorCaller:
        found = await access.check(_token(scope), role.right)
        return OperatorCaller(
            user=found.username, groups=tuple(found.groups), source=CallSource.TOKEN
        )

    return identify


async def by_anybody(_scope: Scope, _role: Role) -> OperatorCaller:
    """Let in every caller, with every role."""
    return OperatorCaller(user="", source=CallSource.OPEN)


@dataclass(eq=False)
class OperatorAccess:
    """Hands to `app` what may be asked, with the caller in the request's state.

    `journal`: None: the log alone keeps calls.
    """

    app: ASGIApp
    identify: Identify
    activity: Activity
    journal: PostgresCallJournal | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        verb = verb_of(scope["method"], scope["path"])
        try:
            caller = await self.identify(scope, verb.role)
            if verb.role is Role.OPERATE or scope["path"] in _FROM_MEMORY:
                self.activity.check()
        except HamiError as exc:
            if isinstance(exc, NotAllowed):
                logger.warning("operator call refused", extra=_line(verb) | {"error": str(exc)})
                await self._note_refused(scope, verb, exc)
            await refuse(exc, send)
            return
        scope.setdefault("state", {})[CALLER] = caller
        if not verb.logged:
            await self.app(scope, receive, send)
            return
        await self._logged(verb, caller, scope, receive, send)

    async def _logged(
        self, verb: Verb, caller: OperatorCaller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        app = self.app
        if verb.role is Role.OPERATE and self.journal is not None:
            app = OperatorCalls(app, self.journal, _call(scope, verb, caller))
        try:
            await app(scope, receive, watched)
        finally:
            # Also of a caller who hung up: what was begun may have been done.
            logger.info("operator call", extra=_line(verb, caller) | {"status": status})

    async def _note_refused(self, scope: Scope, verb: Verb, refusal: NotAllowed) -> None:
        if verb.role is not Role.OPERATE or self.journal is None or refusal.caller is None:
            return
        found = refusal.caller
        caller = OperatorCaller(
            user=found.username, groups=tuple(found.groups), source=CallSource.TOKEN
        )
        await note_refused(self.journal, _call(scope, verb, caller), str(refusal))


def _call(scope: Scope, verb: Verb, caller: OperatorCaller) -> OperatorCall:
    client = scope.get("client")
    return OperatorCall(
        caller=caller,
        address=clip(str(client[0])) if client else "",
        verb=verb.name,
        object=verb.object,
    )


def _line(verb: Verb, caller: OperatorCaller | None = None) -> dict[str, object]:
    line: dict[str, object] = {"verb": verb.name}
    if caller is not None:
        line |= {
            "user": caller.user,
            "groups": clip(" ".join(caller.groups), _GROUPS_CHARACTERS),
            "source": str(caller.source),
        }
    return line


def _token(scope: Scope) -> str:
    headers = scope["headers"]
    return bearer_token(
        [str(value, "latin-1") for name, value in headers if name == b"authorization"]
    )
