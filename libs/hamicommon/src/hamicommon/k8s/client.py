"""Small asynchronous client of the Kubernetes API, with JSON objects as plain dicts.

`credentials.py` has the configuration, TLS and tokens. Bodies stay bytes and are decoded by orjson,
because typed decoding costs six times (lists) to twenty times (watches) as much CPU and because
typed clients raise on the Status that answers a binding (kubernetes-client/python#547). ADR 10 has
the alternatives and figures. List and watch are in `informer.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import cast

import aiohttp
import orjson

from hamicommon.errors import Conflict, Forbidden, HamiError, InvalidRequest, NotFound, Unavailable
from hamicommon.k8s.credentials import Credentials, credentials_of
from hamicommon.k8s.types import Json
from hamicommon.process.trusted_authorities import trusted_until

REQUEST_TIMEOUT_S = 10.0
# Idle time after which a silent watch is given up; the server sends bookmarks about once a minute.
WATCH_IDLE_S = 120.0
# Some exchanges with a server near by.
TLS_CLOSE_S = 0.1
# aiohttp's own 100 is short for the watches plus the binds in flight of a burst of 200 pods.
MAX_CONNECTIONS = 400
# A new connection costs both sides a TLS handshake, and bursts come some seconds apart.
# kube-apiserver closes connections idle for 90 s (IdleTimeout of its http.Server).
KEEP_ALIVE_S = 75.0
_WARNING = re.compile(r'\d{3} \S+ "(.*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)")
_EXPIRED = re.compile(r"too old resource version|Expired|Gone", re.IGNORECASE)


class PatchType(StrEnum):
    """Content type of a patch."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


class Expired(HamiError):
    """Error 410: the resourceVersion is too old, so list again."""


class KubeApi:
    """Requests to one API server.

    Each has a time-out and raises the errors of `hamicommon.errors`.
    """

    def __init__(
        self,
        credentials: Credentials,
        session: aiohttp.ClientSession,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._credentials = credentials
        self._session = session
        self._timeout_s = timeout_s
        self.on_warning: Callable[[str], None] | None = None
        """Called with each warning in the server's answers, such as those of admission."""

    @property
    def server_url(self) -> str:
        """Base address of the API server."""
        return self._credentials.server_url

    @property
    def trusted_until(self) -> datetime | None:
        """Time when the last CA certificate that verifies the server expires.

        None: unknown, or no TLS.
        """
        return trusted_until(self._credentials.ssl_context)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> Json:
        """Send a request and return the decoded body.

        Raises: NotFound, Conflict (409), Forbidden, Expired (410), InvalidRequest (400, 422),
        Unavailable (the rest).
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                response = await self._send(method, path, body, query or {}, content_type)
                payload = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            what = str(exc) or f"no answer within {limit_s:g} s"
            raise Unavailable(f"Kubernetes API: {method} {path}: {what}") from exc
        if self.on_warning is not None:
            for header in response.headers.getall("Warning", ()):
                self.on_warning(_warning(header))
        if response.status >= 300:
            raise _error(response.status, payload, f"{method} {path}")
        return cast(Json, orjson.loads(payload)) if payload else {}

    async def _send(
        self, method: str, path: str, body: object, query: Mapping[str, str], content_type: str
    ) -> aiohttp.ClientResponse:
        headers: dict[str, str] = {"Accept": "application/json", "Content-Type": content_type}
        # Also reads a service account's token again when it is old.
        await self._credentials.authorize(headers)
        return await self._session.request(
            method,
            f"{self.server_url}{path}",
            params=dict(query),
            data=None if body is None else orjson.dumps(body),
            headers=headers,
        )

    async def get(self, path: str, **query: str) -> Json:
        """Read one object, or a list with `labelSelector=`, `fieldSelector=`."""
        return await self.request("GET", path, query=query)

    async def create(self, path: str, body: Json, **query: str) -> Json:
        """Create an object in the collection at `path` (also `.../binding`)."""
        return await self.request("POST", path, body=body, query=query)

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object (PUT); fails if the body's resourceVersion is outdated."""
        return await self.request("PUT", path, body=body)

    async def patch(self, path: str, body: object, kind: PatchType = PatchType.MERGE) -> Json:
        """Patch the object, or its subresource, at `path`."""
        return await self.request("PATCH", path, body=body, content_type=kind.value)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        """Delete an object; `body` may be DeleteOptions."""
        return await self.request("DELETE", path, body=body)

    async def text(self, path: str) -> str:
        """Read plain text, such as a container's log."""
        async with asyncio.timeout(self._timeout_s):
            response = await self._send("GET", path, None, {}, "application/json")
            payload = await response.read()
        if response.status >= 300:
            raise _error(response.status, payload, f"GET {path}")
        return payload.decode(errors="replace")

    async def watch(self, path: str, *, resource_version: str, **query: str) -> AsyncIterator[Json]:
        """Yield watch events ({"type", "object"}), bookmarks included, until the server closes.

        Raises: Expired when the version is too old, Unavailable when the connection breaks.
        """
        params = {
            **query,
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._send("GET", path, None, params, "application/json")
            async with response:
                if response.status >= 300:
                    raise _error(response.status, await response.read(), f"WATCH {path}")
                try:
                    async for event in _events(response):
                        yield event
                finally:
                    _abort(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise Unavailable(f"Kubernetes API: watch {path}: {exc or 'silent'}") from exc


def _abort(response: aiohttp.ClientResponse) -> None:
    """Drop a watch's connection immediately: an orderly TLS close could outlive the client."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    """Yield lines of the body, without the limit on length that aiohttp's readline has."""
    rest = b""
    chunks = response.content.iter_any()
    while True:
        async with asyncio.timeout(WATCH_IDLE_S):
            try:
                chunk = await anext(chunks, None)
            except RuntimeError as exc:
                # So aiohttp reads on from a connection that was lost between two chunks.
                raise aiohttp.ClientConnectionError(str(exc)) from exc
        if chunk is None:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line:
                continue
            event = cast(Json, orjson.loads(line))
            if event["type"] == "ERROR":
                status = event["object"]
                raise _error(int(status.get("code", 500)), orjson.dumps(status), "watch")
            yield event


def _warning(header: str) -> str:
    """Return the text of a Warning header `299 - "text"` (RFC 7234, section 5.5)."""
    quoted = _WARNING.fullmatch(header)
    return _ESCAPED.sub(r"\1", quoted.group(1)) if quoted else header


def _error(status: int, payload: bytes, what: str) -> HamiError:
    try:
        message = str(orjson.loads(payload).get("message") or payload[:200])
    except (orjson.JSONDecodeError, AttributeError):
        message = payload[:200].decode(errors="replace")
    text = f"Kubernetes API: {what}: {message} ({status})"
    if status == 404:
        return NotFound(text)
    if status == 409:
        return Conflict(text)
    if status == 410 or (status == 500 and _EXPIRED.search(message)):
        return Expired(text)
    if status in (401, 403):
        return Forbidden(text)
    if status in (400, 405, 413, 415, 422):
        return InvalidRequest(text)
    return Unavailable(text)


@asynccontextmanager
async def open_kube_api(
    kubeconfig: Path | None, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> AsyncIterator[KubeApi]:
    """Open a client with a kubeconfig file; None: with the pod's service account.

    Raises: InvalidRequest when there is no usable configuration.
    """
    async with credentials_of(kubeconfig) as credentials:
        connector = aiohttp.TCPConnector(
            ssl=credentials.ssl_context or True,
            limit=MAX_CONNECTIONS,
            keepalive_timeout=KEEP_ALIVE_S,
            ttl_dns_cache=60,
        )
        # The time-outs are ours, per call; a watch has none in total.
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:
            yield KubeApi(credentials, session, timeout_s=timeout_s)
        # Requests that were cancelled are still closing TLS (aiohttp's documentation,
        # "Graceful shutdown"); without this their sockets would outlive the event loop.
        await asyncio.sleep(TLS_CLOSE_S)
