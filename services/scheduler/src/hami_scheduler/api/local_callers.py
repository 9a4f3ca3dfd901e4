"""Protection of a port that asks nobody for a token, against pages of other sites.

A browser on this machine reaches such a port, too. A page of another site can have it send a
request (which then names that site as `Origin`), or read answers through a name of its own that it
points at this machine (which then is the `Host`).
"""

from __future__ import annotations

import ipaddress

from hamicommon.access.checks import NotAllowed, host_name
from hamicommon.clipping import clip
from hamicommon.errors import HamiError
from starlette.types import ASGIApp, Receive, Scope, Send

from hami_scheduler.api.http import refuse

CLUSTER_DOMAINS = (".svc", ".cluster.local")
"""Domains of a Service's names; no site of the internet is in them."""


class LocalCallers:
    """Hand to `app` the calls that no page of another site can have sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
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
    # A certificate is not good for the other site's name, so no browser gets as far as this.
    if scope.get("scheme") != "https" and not is_local_name(host):
        return NotAllowed(
            f"Host is {clip(host)!r}: without a token this port answers to addresses, to names "
            f"without a dot such as localhost, and to names in {' and '.join(CLUSTER_DOMAINS)}"
        )
    return None


def is_local_name(host: str) -> bool:
    """Return whether `Host` is an address, or a name that no site of the internet can have."""
    name = host_name(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(CLUSTER_DOMAINS))
    return True
