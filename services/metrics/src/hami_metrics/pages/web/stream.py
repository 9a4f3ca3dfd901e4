"""`/live`: one stream per page, of what changed; made once for all who see the same.

`grid=1` (the overview): cells that changed, ready to be put in. Otherwise the names of nodes that
changed, so that a page of one of them loads itself again. `resync`: too much changed, load the page
again. `stale`: the ledger can't be read, the page keeps its figures.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta

import orjson
from fastapi import APIRouter, Request, Response
from hamicommon.errors import HamiError
from sse_starlette import EventSourceResponse, ServerSentEvent

from hami_metrics.pages.domain.cluster import CardCondition, PageCluster
from hami_metrics.pages.domain.notices import Notice
from hami_metrics.pages.feed import FeedLook
from hami_metrics.pages.rendering import HEADERS
from hami_metrics.pages.views.elements.amounts import clock_time
from hami_metrics.pages.views.elements.grid import GridStyle, cells
from hami_metrics.pages.views.elements.viewer import PageViewer
from hami_metrics.pages.views.overview import grid_style
from hami_metrics.pages.web.site import Site, text_of

PING_S = 15
"""Keeps proxies from closing a quiet stream."""
REVIEW_AGAIN_S = 60.0
"""A stream goes on after a right was taken away for so long at most."""
MOST_NAMES = 2000
"""Changed nodes in one message; more: the page is loaded again."""
MOST_VIEWS = 1000
"""Sets of visible namespaces whose letters are kept."""
ALIVE = timedelta(seconds=5)
"""Without a change a message is sent so often, so that ages on the page stay true."""

SentEvent = ServerSentEvent | bytes
"""Bytes are one that was encoded before."""


class Messages:
    """What changed between two versions, made and encoded once for all who see the same."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: dict[tuple[object, ...], bytes] = {}
        self._of: tuple[object, ...] = ()
        """What the messages were made of: figures' date and notices change without a version."""
        self._letters: dict[frozenset[str] | None, tuple[int, Mapping[str, int]]] = {}

    def grid(
        self, look: FeedLook, state: PageCluster, since: int, viewer: PageViewer
    ) -> bytes | None:
        """The event with cells and figures of the look's state; None: load the page again."""
        names = self._site.feed.changed_since(since)
        if names is None or len(names) > MOST_NAMES:
            return None
        made_of = (state.version, state.taken_at, look.notices)
        if made_of != self._of:
            self._made, self._of = {}, made_of
        key = (since, viewer.namespaces)
        if key not in self._made:
            style = grid_style(state, self._site.totals(state), viewer, state.taken_at)
            if not self._same_letters(state.version, since, viewer, style):
                return None
            data = self._grid(look, state, names, style)
            self._made[key] = _encoded("cells", data, self._site.event_id(state))
        return self._made[key]

    def _same_letters(self, version: int, since: int, viewer: PageViewer, style: GridStyle) -> bool:
        """Whether owners have had their letters since then: otherwise every cell changes."""
        letters = style.owners.letters
        first, known = self._letters.get(viewer.namespaces, (version, letters))
        if known != letters:
            first = version
        self._letters[viewer.namespaces] = (first, letters)
        if len(self._letters) > MOST_VIEWS:
            self._letters.clear()
        return since >= first or known == letters

    def _grid(
        self, look: FeedLook, state: PageCluster, names: frozenset[str], style: GridStyle
    ) -> bytes:
        now = state.taken_at
        present = [state.nodes[name] for name in sorted(names) if name in state.nodes]
        if len(present) != len(names):
            return orjson.dumps({"reload": True})
        rows = {node.name: cells(node, style, now) for node in present}
        message: dict[str, object] = {
            "nodes": {
                name: [(one.css, one.text, one.label) for one in row] for name, row in rows.items()
            }
        }
        if any(node.group for node in state.nodes.values()):
            # A node that stands elsewhere now is no cell to be put in: its page loads again.
            message["groups"] = {node.name: node.group for node in present}
        if style.roomy:
            message["slices"] = {
                name: [(one.amount, one.slices) for one in row] for name, row in rows.items()
            }
        return orjson.dumps({**message, **self._figures(look, state)})

    def _figures(self, look: FeedLook, state: PageCluster) -> dict[str, object]:
        return {
            **_dated(look, state),
            "held": self._site.totals(state).funnel.held,
            "sick": self._site.totals(state).counts[CardCondition.UNHEALTHY],
            "waiting": state.waiting,
        }


def routes(site: Site) -> APIRouter:
    """On the parts of `site`."""
    router = APIRouter()
    messages = Messages(site)

    @router.get("/live")
    async def live(request: Request) -> Response:
        grid = text_of(request, "grid") == "1"
        last = request.headers.get("last-event-id") or text_of(request, "since")
        since = version_of(last, site.feed.epoch)
        await site.identity.viewer(request, ())
        events = _events(site, messages, request, since, grid=grid)
        # The first is awaited here, so that who may not look, or one too many, gets a status.
        first = await anext(events)
        return EventSourceResponse(_after(first, events), ping=PING_S, headers=HEADERS)

    return router


def version_of(last: str, epoch: str) -> int:
    """Of an event's id, `EPOCH-VERSION` or the version alone; 0, which is before all versions,
    for one of another process."""
    of, _, number = last.rpartition("-")
    known = of in ("", epoch) and number.isascii() and number.isdigit() and len(number) < 16
    return int(number) if known else 0


def _encoded(kind: str, data: bytes, event_id: str) -> bytes:
    return ServerSentEvent(event=kind, data=data.decode(), id=event_id).encode()


async def _after(first: SentEvent, events: AsyncIterator[SentEvent]) -> AsyncIterator[SentEvent]:
    yield first
    async for event in events:
        yield event


async def _events(
    site: Site, messages: Messages, request: Request, since: int, *, grid: bool
) -> AsyncIterator[SentEvent]:
    reviewed = time.monotonic()
    viewer = await site.identity.viewer(request, site.namespaces(site.feed.newest().state))
    async with site.feed.stream() as looks:
        yield ServerSentEvent(event="hello", data="{}", retry=3000)
        sent_at = None
        shown: tuple[Notice, ...] = ()
        troubled = False
        async for look in looks():
            if time.monotonic() - reviewed > REVIEW_AGAIN_S:
                reviewed = time.monotonic()
                try:
                    viewer = await site.identity.viewer(request, site.namespaces(look.state))
                except HamiError:
                    return
            state = look.state
            if look.trouble is not None or state is None:
                if not troubled or shown != look.notices:
                    yield ServerSentEvent(event="stale", data=_stale(look))
                troubled, shown = True, look.notices
                continue
            quiet = sent_at is not None and state.taken_at - sent_at < ALIVE
            if state.version == since and quiet and not troubled and shown == look.notices:
                continue
            made = (
                messages.grid(look, state, since, viewer)
                if grid
                else _names(site, look, state, since)
            )
            yield _encoded("resync", b"{}", site.event_id(state)) if made is None else made
            since, sent_at, troubled = state.version, state.taken_at, False
            shown = look.notices


def _names(site: Site, look: FeedLook, state: PageCluster, since: int) -> bytes | None:
    names = site.feed.changed_since(since)
    if names is None or len(names) > MOST_NAMES:
        return None
    data = orjson.dumps({"nodes": sorted(names), **_dated(look, state)})
    return _encoded("changed", data, site.event_id(state))


def _dated(look: FeedLook, state: PageCluster) -> dict[str, object]:
    return {
        "taken_at": state.taken_at.timestamp(),
        "notices": [notice.text for notice in look.notices],
    }


def _stale(look: FeedLook) -> str:
    """For people: what is away, since when, and what still holds."""
    texts = [notice.text for notice in look.notices]
    if look.state is None:
        since = clock_time(look.trouble.since) if look.trouble else "?"
        texts = [f"Ledger unreachable since {since}. Nothing was read yet."]
    return orjson.dumps({"notices": texts}).decode()
