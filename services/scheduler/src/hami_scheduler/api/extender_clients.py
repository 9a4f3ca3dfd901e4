"""Who may use kube-scheduler's port: certificates of the authority by their names.

The authority signs more than one: a certificate that was made to read or to scrape must not bind.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from hamicommon.access.checks import NotAllowed
from hamicommon.clipping import clip
from hamicommon.process.http_server import client_name
from starlette.types import ASGIApp, Receive, Scope, Send

from hami_scheduler.api.errors import refuse

logger = logging.getLogger(__name__)


class ExtenderClients:
    """Hands to `app` what the named clients ask, and refuses all others."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        """`names`: common names of certificates."""
        self._app = app
        self._names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        name = client_name(scope)
        if name in self._names:
            await self._app(scope, receive, send)
            return
        shown = clip(name or "")
        logger.warning("extender client refused", extra={"client": shown, "path": scope["path"]})
        await refuse(
            NotAllowed(
                f"the certificate of {shown!r} may not use kube-scheduler's port: "
                "HAMI_SCHEDULER_EXTENDER_CLIENTS names those that may"
            ),
            send,
        )
