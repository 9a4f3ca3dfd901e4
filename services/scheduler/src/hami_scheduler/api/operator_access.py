"""Authenticate and authorize every call of the operators' API.

On the operators' port the token identifies the caller (`Role`). On kube-scheduler's port, which is
on loopback, every caller is accepted if the port serves the API too. Calls that are more than a
read are in the log with their caller. Those that change something also have a row of
`operator_calls`, which begins before the call and ends with the answer's status: if the ledger
can't be written, the answer is 503, and nothing is carried out. A standby replica answers what it
reads from the ledger, and refuses the rest.

A port without tokens is protected against pages of other sites (`LocalCallers`). A browser on this
machine reaches such a port, too. A page of another site can have it send a request (which then
names that site as `Origin`), or read answers through a name of its own that it points at this
machine (which then is the `Host`).
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hamicommon.access.checks import Access, ApiCaller, NotAllowed, Right, bearer_token, host_name
from hamicommon.clipping import clip
from hamicommon.errors import HamiError
from hamicommon.process.best_effort import log_failure
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hami_scheduler.activity import Activity
from hami_scheduler.api.http import refuse
from hami_scheduler.ports.ledger import CallOutcome, OperatorCall

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.housekeeping import PostgresCallJournal

CLUSTER_DOMAINS = (".svc", ".cluster.local")
"""Domains of Kubernetes Services, which no internet site has."""


class LocalCallers:
    """Middleware that lets only calls pass that no web page of another site can have sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        if scope["type"] == "http":
            refusal = _refusal(scope)
            if refusal is not None:
                await refuse(refusal, send)
                return
        await self._app(scope, receive, send)


def _refusal(scope: Scope) -> HamiError | None:
    headers = dict(scope["headers"])
    if b"origin" in headers:
        origin = clip(headers[b"origin"].decode("latin-1"))
        return NotAllowed(
            f"a page of {origin!r} sent this call: browsers are not served here; use hamictl"
        )
    host = headers.get(b"host", b"").decode("latin-1")
    # A certificate is not valid for the other site's name, so no browser gets this far.
    if scope.get("scheme") != "https" and not is_local_name(host):
        return NotAllowed(
            f"Host is {clip(host)!r}: without a token this port answers to addresses, to names "
            f"without a dot such as localhost, and to names in {' and '.join(CLUSTER_DOMAINS)}"
        )
    return None


def is_local_name(host: str) -> bool:
    """Return whether `Host` is an address, or a name that no internet site can have."""
    name = host_name(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(CLUSTER_DOMAINS))
    return True


logger = logging.getLogger(__name__)

GROUP = "hami.io"
RESOURCE = "scheduler"
"""Resource that exists only for RBAC rules; ClusterRoles `hami-reader` and `hami-operator`."""
_FROM_MEMORY = ("/v1/simulate", "/v1/vain-settings")
"""Paths about state that only the active replica has."""
_SEND = re.compile(r"/v1/dead-letters/([^/]+)/send")
_GROUPS_CHARACTERS = 1024
"""Maximum characters of the groups in a log line."""
MAX_GROUPS = 16
MAX_GROUP = 128
MAX_BODY = 1024
MAX_ANSWER = 512
"""Maximum characters (bytes of a body) that are logged of a call."""
NO_ANSWER = "it ended without an answer"


class Role(Enum):
    """Role that a call needs; the values are verbs in RBAC."""

    READ = Right(verb="get", group=GROUP, resource=RESOURCE, role="hami-reader")
    OPERATE = Right(verb="update", group=GROUP, resource=RESOURCE, role="hami-operator")


Identify = Callable[[Scope, Role], Awaitable[ApiCaller]]
"""Function that identifies the caller and checks the role.

Raises: Unauthenticated, NotAllowed, Unavailable.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Action of a call."""

    name: str
    role: Role
    logged: bool
    """Whether it is logged, because it is more than a read."""
    object: str = ""
    """Object in the path, such as the number of a dead letter."""


def verb_of(method: str, path: str) -> Verb:
    """Return the action of a call; everything that is not known to only read is an operation."""
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
    """Return a function that identifies callers by reviews of their tokens."""

    async def identify(scope: Scope, role: Role) -> ApiCaller:
        return await access.check(_token(scope), role.value)

    return identify


async def by_anybody(_scope: Scope, _role: Role) -> ApiCaller:
    """Accept every caller with every role."""
    return ApiCaller(username="")


@dataclass(eq=False)
class OperatorAccess:
    """Middleware that authorizes calls, and passes the caller in the request's state.

    `journal`: None: only the log keeps calls.
    """

    app: ASGIApp
    identify: Identify
    activity: Activity
    journal: PostgresCallJournal | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
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
        if not verb.logged:
            await self.app(scope, receive, send)
            return
        await self._serve_and_log(verb, caller, scope, receive, send)

    async def _serve_and_log(
        self, verb: Verb, caller: ApiCaller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        answer = _Answer(send)
        try:
            if verb.role is Role.OPERATE and self.journal is not None:
                await self._serve_and_journal(self.journal, verb, caller, scope, receive, answer)
            else:
                await self.app(scope, receive, answer.send)
        finally:
            # Also after the caller hung up: the operation may have been done.
            logger.info("operator call", extra=_line(verb, caller) | {"status": answer.status})

    async def _serve_and_journal(
        self,
        journal: PostgresCallJournal,
        verb: Verb,
        caller: ApiCaller,
        scope: Scope,
        receive: Receive,
        answer: _Answer,
    ) -> None:
        beginning, receive = await _peek(receive)
        about = verb.object or clip(beginning.decode(errors="replace"), MAX_BODY)
        try:
            number = await journal.begin(_call(scope, verb, caller, about))
        except HamiError as exc:
            await refuse(exc, answer.send)
            return
        try:
            await self.app(scope, receive, answer.send)
        finally:
            outcome = CallOutcome.DONE if 0 < answer.status < 400 else CallOutcome.FAILED
            message = clip(answer.beginning.decode(errors="replace"), MAX_ANSWER) or NO_ANSWER
            with log_failure(
                logger, "Failed to write the outcome of an operator call", level=logging.ERROR
            ):
                await journal.end(number, outcome, message)

    async def _note_refused(self, scope: Scope, verb: Verb, refusal: NotAllowed) -> None:
        if verb.role is not Role.OPERATE or self.journal is None or refusal.caller is None:
            return
        call = _call(scope, verb, refusal.caller, verb.object)
        failed = "Failed to write a refused operator call"
        with log_failure(logger, failed, level=logging.ERROR):
            await self.journal.record_refusal(call, clip(str(refusal), MAX_ANSWER))


class _Answer:
    """Response that is being sent: its status, and the beginning of its body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.beginning = b""

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body" and len(self.beginning) < MAX_ANSWER:
            self.beginning += message.get("body", b"")[:MAX_ANSWER]
        await self._send(message)


async def _peek(receive: Receive) -> tuple[bytes, Receive]:
    """Return the beginning of the body, and a `receive` that still returns all of it."""
    read: list[Message] = []
    body, more = b"", True
    while more and len(body) < MAX_BODY:
        message = await receive()
        read.append(message)
        body, more = body + message.get("body", b""), message.get("more_body", False)

    async def replay() -> Message:
        return read.pop(0) if read else await receive()

    return body[:MAX_BODY], replay


def _call(scope: Scope, verb: Verb, caller: ApiCaller, about: str) -> OperatorCall:
    client = scope.get("client")
    groups = [clip(group, MAX_GROUP) for group in caller.groups[:MAX_GROUPS]]
    if len(caller.groups) > MAX_GROUPS:
        groups.append(f"... {len(caller.groups) - MAX_GROUPS} more")
    return OperatorCall(
        user=clip(caller.username),
        groups=tuple(groups),
        address=clip(str(client[0])) if client else "",
        verb=verb.name,
        object=about,
    )


def _line(verb: Verb, caller: ApiCaller | None = None) -> dict[str, object]:
    line: dict[str, object] = {"verb": verb.name}
    if caller is not None:
        line |= {
            "user": caller.username,
            "groups": clip(" ".join(caller.groups), _GROUPS_CHARACTERS),
            "source": "token" if caller.username else "open",
        }
    return line


def _token(scope: Scope) -> str:
    headers = scope["headers"]
    return bearer_token(
        [str(value, "latin-1") for name, value in headers if name == b"authorization"]
    )
