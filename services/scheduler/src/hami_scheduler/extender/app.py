"""The extender verbs as a bare ASGI application, in front of everything else.

kube-scheduler calls them once or more per pod and waits; a web framework's middleware would cost as
much as the decision's SQL. All other paths go on to the application of `api/app.py`. A replica
that stands by refuses; `verbs.py` has the answers. Its status is always 200, as kube-scheduler
expects.
"""

from __future__ import annotations

import asyncio

from hamicommon.errors import HamiError, InvalidRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from hami_scheduler.activity import Activity
from hami_scheduler.extender.protocol import MAX_BODY_BYTES
from hami_scheduler.extender.verbs import ExtenderVerbs, Record


class ExtenderApp:
    """Answers POST on the verbs; hands everything else to `rest`."""

    def __init__(self, verbs: ExtenderVerbs, *, activity: Activity, rest: ASGIApp) -> None:
        self._verbs = verbs
        self._activity = activity
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        verb = scope.get("path", "").removeprefix("/")
        if scope["type"] != "http" or scope["method"] != "POST" or verb not in self._verbs:
            await self._rest(scope, receive, send)
            return
        body, record = await self._answered(verb, receive)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            if record is not None:
                # The answer leaves at the end of this turn of the loop (`JoinedWrites`).
                await asyncio.sleep(0)
        finally:
            if record is not None:
                record()

    async def _answered(self, verb: str, receive: Receive) -> tuple[bytes, Record | None]:
        try:
            asked = await _read(receive)
            await self._activity.wait()
        except HamiError as exc:
            return self._verbs.refuse(verb, exc), None
        return await self._verbs.answer(verb, asked)


async def _read(receive: Receive) -> bytes:
    """The whole body. Raises: InvalidRequest when it is too long, before the rest is read, or
    the caller has gone."""
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("the caller closed the connection before the body was complete")
        part = message.get("body", b"")
        length += len(part)
        if length > MAX_BODY_BYTES:
            raise InvalidRequest(
                f"the body is longer than {MAX_BODY_BYTES} bytes: names of nodes are wanted here "
                "(nodeCacheCapable: true); ask /v1/simulate about whole Node objects"
            )
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
