"""Stands before the operator API on its own port: no call passes without a token that may make it.

The port's certificate is the server's; clients show none. What the API server answers about a token
is in `access.py`.
"""

from __future__ import annotations

import logging

from hamicommon.errors import HamiError
from starlette.types import ASGIApp, Receive, Scope, Send

from hami_scheduler.api.errors import JSON, body_of, status_of
from hami_scheduler.ports.access import Access, Role, Unauthenticated

logger = logging.getLogger(__name__)

_ASKS_ONLY = {"/v1/simulate"}
"""Calls with a body that change nothing."""


def role_of(method: str, path: str) -> Role:
    """What a call needs: everything that is not known to read alone is operating."""
    reads = method in ("GET", "HEAD") or path in _ASKS_ONLY
    return Role.READ if reads else Role.OPERATE


class OperatorAccess:
    """Hands to `app` what may be asked."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        method, path = scope["method"], scope["path"]
        role = role_of(method, path)
        try:
            caller = await self._access.check(_token(scope), role)
        except HamiError as exc:
            await _refuse(exc, send)
            return
        if role is Role.OPERATE:
            logger.info(
                "operator call", extra={"user": caller.username, "method": method, "path": path}
            )
        await self._app(scope, receive, send)


def _token(scope: Scope) -> str:
    """Of the Authorization header; empty when there is none (or several, or of another kind)."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1:
        return ""
    scheme, _, token = str(given[0], "latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def _refuse(exc: HamiError, send: Send) -> None:
    body = body_of(exc)
    headers = [
        (b"content-type", JSON.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    if isinstance(exc, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    start = {"type": "http.response.start", "status": status_of(exc), "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
