"""Writes down who called what: no call that changes something is carried out without its row.

`operator_access.py` names who calls and what. In: an ASGI call. Out: the same call, with a row of
`operator_calls` that begins before it and ends with its answer's status. A ledger that can't be
written to answers 503, and nothing is carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hamicommon.clipping import clip
from hamicommon.errors import HamiError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hami_scheduler.api.http import refuse
from hami_scheduler.ports.ledger import CallOutcome, OperatorCall

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.housekeeping import PostgresCallJournal

logger = logging.getLogger(__name__)

MOST_GROUPS = 16
MOST_OF_A_GROUP = 128
MOST_OF_A_BODY = 1024
MOST_OF_AN_ANSWER = 512
"""Characters (bytes of a body) that are kept."""
NO_ANSWER = "it ended without an answer"


class OperatorCalls:
    """Hands one call to `app`, with its row."""

    def __init__(self, app: ASGIApp, journal: PostgresCallJournal, call: OperatorCall) -> None:
        """`call`: without an object it is about its body."""
        self._app = app
        self._journal = journal
        self._call = _bounded(call)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        replayed = _Replayed(receive)
        body = await replayed.peek()
        about = self._call.object or clip(body.decode(errors="replace"), MOST_OF_A_BODY)
        try:
            number = await self._journal.begin(replace(self._call, object=about))
        except HamiError as exc:
            await refuse(exc, send)
            return
        watched = _Watched(send)
        try:
            await self._app(scope, replayed.receive, watched.send)
        finally:
            # Also of a caller who hung up: what was begun may have been done.
            failed = watched.status >= 400
            outcome = CallOutcome.FAILED if failed else CallOutcome.DONE
            await self._end(number, outcome, clip(watched.text, MOST_OF_AN_ANSWER) or NO_ANSWER)

    async def _end(self, number: int, outcome: CallOutcome, message: str) -> None:
        """The call was carried out: what can't be written now does not change its answer."""
        try:
            await self._journal.end(number, outcome, message)
        except HamiError as exc:
            logger.error(
                "outcome of an operator call not written",
                extra={"call": number, "outcome": outcome.value, "error": str(exc)},
            )


async def note_refused(journal: PostgresCallJournal, call: OperatorCall, message: str) -> None:
    """Writes that the caller may not; nothing was carried out, so what fails is logged alone."""
    try:
        await journal.refused(_bounded(call), clip(message, MOST_OF_AN_ANSWER))
    except HamiError as exc:
        logger.error("refused operator call not written", extra={"error": str(exc)})


def _bounded(call: OperatorCall) -> OperatorCall:
    caller = replace(call.caller, user=clip(call.caller.user), groups=_groups(call.caller.groups))
    return replace(call, caller=caller)


def _groups(groups: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(clip(group, MOST_OF_A_GROUP) for group in groups[:MOST_GROUPS])
    more = len(groups) - MOST_GROUPS
    return (*kept, f"... {more} more") if more > 0 else kept


class _Replayed:
    """A body of which the beginning was read before its reader reads it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: list[Message] = []

    async def peek(self) -> bytes:
        """The first bytes of the body, at most `MOST_OF_A_BODY`."""
        body = b""
        while len(body) < MOST_OF_A_BODY:
            message = await self._receive()
            self._read.append(message)
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        return body[:MOST_OF_A_BODY]

    async def receive(self) -> Message:
        """As the server would hand it over."""
        return self._read.pop(0) if self._read else await self._receive()


class _Watched:
    """An answer on its way: its status, and the beginning of its body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._body = b""
        self.status = 500

    @property
    def text(self) -> str:
        """What was answered, as far as it is kept."""
        return self._body.decode(errors="replace")

    async def send(self, message: Message) -> None:
        """Hands it on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body" and len(self._body) < MOST_OF_AN_ANSWER:
            self._body += message.get("body", b"")[:MOST_OF_AN_ANSWER]
        await self._send(message)
