"""Stream `/live` of changes for open pages, encoded once for equal viewers.

`changed`: the lines of nodes that changed, which the overview inserts; a page that shows one of
those nodes reloads itself. `resync`: too much changed, reload the page. `stale`: the ledger can't
be read, the page keeps its figures.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta

import orjson
from fastapi import APIRouter, Request, Response
from hamicommon.errors import HamiError
from sse_starlette import EventSourceResponse, ServerSentEvent

from hami_metrics.domain.redaction import PageViewer
from hami_metrics.pages.amounts import clock_time
from hami_metrics.pages.cluster import CardCondition, PageCluster
from hami_metrics.pages.feed import FeedLook, Notice
from hami_metrics.pages.grid import grid_style
from hami_metrics.pages.rendering import HEADERS
from hami_metrics.pages.site import Site, text_of

PING_INTERVAL_S = 15
"""Interval of messages that keep proxies from closing a quiet stream."""
REVIEW_INTERVAL_S = 60.0
"""Maximum time for which a stream continues after a right was revoked."""
MAX_CHANGED_NODES = 2000
"""Maximum number of changed nodes in a message; with more the page is reloaded."""
ALIVE_INTERVAL = timedelta(seconds=5)
"""Interval of messages without a change, so that ages on the page stay current."""

SentEvent = ServerSentEvent | bytes
"""Event, or the bytes of an encoded one."""


class Messages:
    """Cache of messages from earlier versions to the present one, by viewer's rights."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: dict[tuple[object, ...], bytes] = {}
        self._made_of: tuple[object, ...] = ()
        """Figures' date and notices change without a version."""

    def message(self, look: FeedLook, state: PageCluster, since: int, viewer: PageViewer) -> bytes:
        """Return the event that updates a page of version `since` to this state."""
        made_of = (state.version, state.taken_at, look.notices)
        if made_of != self._made_of:
            self._made, self._made_of = {}, made_of
        key = (since, viewer)
        if key not in self._made:
            self._made[key] = self._encode_event(look, state, since, viewer)
        return self._made[key]

    def _encode_event(
        self, look: FeedLook, state: PageCluster, since: int, viewer: PageViewer
    ) -> bytes:
        kind, data = "resync", b"{}"
        names = self._site.feed.changed_since(since)
        if names is not None and len(names) <= MAX_CHANGED_NODES:
            style, lines = grid_style(state, viewer), self._site.lines
            sums = self._site.sums(state)
            kind = "changed"
            data = orjson.dumps(
                {
                    "taken_at": state.taken_at.timestamp(),
                    "notices": [notice.text for notice in look.notices],
                    "held": sums.held,
                    "sick": sums.counts[CardCondition.UNHEALTHY],
                    "waiting": state.waiting,
                    "nodes": {
                        name: str(lines.line(state, state.nodes[name], style))
                        if name in state.nodes
                        else None
                        for name in sorted(names)
                    },
                }
            )
        return ServerSentEvent(event=kind, data=data.decode(), id=str(state.version)).encode()


def routes(site: Site) -> APIRouter:
    """Serve the stream."""
    router = APIRouter()
    messages = Messages(site)

    @router.get("/live")
    async def live(request: Request) -> Response:
        last = request.headers.get("last-event-id") or text_of(request, "since")
        is_number = last.isascii() and last.isdigit() and len(last) < 16
        await site.identity.viewer(request, ())
        events = _events(site, messages, request, int(last) if is_number else 0)
        # The first is awaited here, so that a viewer who may not look, or one too many, gets a
        # status.
        first = await anext(events)
        return EventSourceResponse(_after(first, events), ping=PING_INTERVAL_S, headers=HEADERS)

    return router


async def _after(first: SentEvent, events: AsyncIterator[SentEvent]) -> AsyncIterator[SentEvent]:
    yield first
    async for event in events:
        yield event


async def _events(
    site: Site, messages: Messages, request: Request, since: int
) -> AsyncIterator[SentEvent]:
    reviewed_at = time.monotonic()
    viewer = await site.identity.viewer(request, site.namespaces(site.feed.newest().state))
    async with site.feed.stream() as looks:
        yield ServerSentEvent(event="hello", data="{}", retry=3000)
        sent_at = None
        shown: tuple[Notice, ...] = ()
        is_stale = False
        async for look in looks():
            if time.monotonic() - reviewed_at > REVIEW_INTERVAL_S:
                reviewed_at = time.monotonic()
                try:
                    viewer = await site.identity.viewer(request, site.namespaces(look.state))
                except HamiError:
                    return
            state = look.state
            if look.trouble is not None or state is None:
                if not is_stale or shown != look.notices:
                    yield ServerSentEvent(event="stale", data=_stale(look))
                is_stale, shown = True, look.notices
                continue
            is_recent = sent_at is not None and state.taken_at - sent_at < ALIVE_INTERVAL
            is_same = state.version == since and not is_stale and shown == look.notices
            if is_recent and is_same:
                continue
            yield messages.message(look, state, since, viewer)
            since, sent_at, is_stale = state.version, state.taken_at, False
            shown = look.notices


def _stale(look: FeedLook) -> str:
    """Describe what is unavailable, since when, and what still works."""
    texts = [notice.text for notice in look.notices]
    if look.state is None:
        since = clock_time(look.trouble.since) if look.trouble else "?"
        texts = [f"Ledger unreachable since {since}. Nothing was read yet."]
    return orjson.dumps({"notices": texts}).decode()
