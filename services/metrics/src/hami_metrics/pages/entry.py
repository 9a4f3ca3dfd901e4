"""Entry point of the pages, whose application is created at the first request.

Templates, pages and the stream are imported at the first request, so a service whose pages are not
used stays small. Without an identity only the loopback device is bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hamicommon.access.checks import AccessReviews, host_name, is_loopback
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.database import Database
from hamicommon.ledger.showback import PriceList
from hamicommon.process.bulkhead import Bulkhead

from hami_metrics.domain.redaction import ShowOwners

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

IdentitySource = Literal["none", "token", "proxy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesNeeds:
    """Parts and settings from which the pages are created."""

    ledger: Database
    """Connections for the pages only."""
    reviews: AccessReviews | None
    """Reviews of callers; None: callers are not identified."""
    proxy: bool
    groups_header: str = ""
    """Header in which the proxy names groups; empty: none."""
    show: ShowOwners
    secret: str = field(repr=False)
    """Secret that all replicas share, from which the key of page positions is derived."""
    clock: Callable[[], datetime]
    bulkhead: Bulkhead
    cluster_name: str = ""
    """Name in every page's header; empty: none."""
    events_connected: Callable[[], bool] = lambda: True
    """Function that returns whether the bus, which brings measured use, is connected."""
    prices: PriceList | None = None
    """Price list of the bill; None: no costs."""
    traces: Path | None = None
    """Folder of finished spans, one file per service; None: no such folder."""
    trace_url: str = ""
    """Address of a trace in a viewer, with `{trace_id}` in it; empty: none."""


def check_bind(bind: str, identity: IdentitySource, *, published_locally: bool = False) -> None:
    """Check that pages without identity are not served to a network. Raises: InvalidRequest.

    `published_locally`: only this machine reaches the port, whatever it is bound to.
    """
    if identity == "token" or (identity == "none" and published_locally):
        return
    if is_loopback(host_name(bind)):
        return
    why = (
        "any client could then claim to be any user: run the proxy in the same pod and "
        "bind 127.0.0.1"
        if identity == "proxy"
        else "callers are not authenticated: use 127.0.0.1, or set HAMI_METRICS_PAGES_IDENTITY"
    )
    raise InvalidRequest(f"HAMI_METRICS_PAGES_BIND is {bind}, but {why}")


class Pages:
    """ASGI application that creates the real one at the first request."""

    def __init__(self, needs: PagesNeeds) -> None:
        self._needs = needs
        self._app: ASGIApp | None = None
        self._close: Callable[[], Awaitable[None]] | None = None
        self._paths: tuple[str, ...] = ()
        self._turn = asyncio.Lock()

    @property
    def opened(self) -> bool:
        """Whether the real application was created."""
        return self._app is not None

    def paths(self) -> list[str]:
        """Return the paths of all routes, once opened."""
        return list(self._paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self._app is None:
            async with self._turn:
                if self._app is None:
                    # Reads templates' modules from disk: beside the loop.
                    module = await asyncio.to_thread(import_module, "hami_metrics.pages.app")
                    self._app, self._paths, self._close = module.create_pages(self._needs)
        await self._app(scope, receive, send)

    async def close(self) -> None:
        """Close the streams, which do not end by themselves."""
        if self._close is not None:
            await self._close()
