"""`/`, `/nodes/{name}`, `/cards/{uuid}`: what there is and who holds it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from hamicommon.errors import NotFound

from hami_metrics.pages.domain.cluster import PageCard, PageCluster, PageNode
from hami_metrics.pages.reading.cards import (
    PAGE_ROWS,
    find_card,
    node_of_card,
    read_counts,
    read_drift,
    read_health,
    read_held,
)
from hami_metrics.pages.reading.usage import read_latest, read_series
from hami_metrics.pages.rendering import HEADERS, link
from hami_metrics.pages.views.card import (
    CardPage,
    card_charts,
    changes,
    lanes,
    neighbours,
    pictured_since,
)
from hami_metrics.pages.views.node import NodePage, node_page
from hami_metrics.pages.views.overview import GROUPINGS, SORTS, GridFilter, overview
from hami_metrics.pages.web.keyset import key_of, key_text
from hami_metrics.pages.web.site import Asked, Site, choice_of, needed, text_of

CHART_HOURS = 6
SPANS_H = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720}
"""Of a card's picture."""


def routes(site: Site) -> APIRouter:
    """On the parts of `site`."""
    router = APIRouter()

    @router.get("/")
    async def overview_page(request: Request) -> Response:
        asked = await site.asked(request)
        return overview_answer(site, asked, request, "overview.html")

    @router.get("/nodes/{name}")
    async def one_node(name: str, request: Request) -> Response:
        asked = await site.asked(request)
        page = await _node(site, asked, name)
        return site.answer(asked, "node.html", page=page, here="nodes", subject=name)

    @router.get("/nodes/{name}/cards/{index}")
    async def card_of_node(name: str, index: int, request: Request) -> Response:
        asked = await site.asked(request)
        uuid = _uuid(asked.state, name, index)
        if uuid is None:
            async with site.ledger.look() as connection:
                uuid = await find_card(connection, name, min(index, 2**31 - 1))
        if uuid is None:
            raise NotFound(f"node {name} has no card {index}")
        path = f"/cards/{site.renderer.segment(uuid)}"
        return RedirectResponse(link(asked.moment, path), status_code=307, headers=HEADERS)

    @router.get("/cards/{uuid}")
    async def one_card(uuid: str, request: Request) -> Response:
        asked = await site.asked(request)
        window = choice_of(request, "window", SPANS_H, "24h")
        after = key_of(text_of(request, "after"))
        page, more = await _card(site, asked, uuid, SPANS_H[window], after)
        return site.answer(
            asked,
            "card.html",
            page=page,
            window=window,
            windows=list(SPANS_H),
            more=None if more is None else key_text(more),
            here="nodes",
            subject=page.node,
        )

    return router


def overview_answer(
    site: Site,
    asked: Asked,
    request: Request,
    template: str,
    *,
    here: str = "overview",
    differing: frozenset[str] = frozenset(),
    **values: Any,
) -> Response:
    """The overview, or a page around its grid; `differing`: cards that are not so now."""
    chosen = GridFilter(
        text=text_of(request, "q"),
        model=text_of(request, "model"),
        owner=text_of(request, "owner"),
        problems=text_of(request, "z") == "1",
        sort=choice_of(request, "sort", SORTS, "name"),
        group=choice_of(request, "group", GROUPINGS, "label"),
        unfold=text_of(request, "open") == "all",
    )
    if asked.state is None:
        return site.answer(asked, "states/nothing.html", status=503, here=here, subject="")
    now = asked.moment.shown
    sums = site.totals(asked.state)
    page = overview(
        *(asked.state, sums, asked.viewer, chosen, now, asked.moment.query, differing),
        # Moments of the past come and go: theirs would drive out those of now.
        tallies=None if asked.state.past else site.tallies,
    )
    return site.answer(
        asked,
        template,
        page=page,
        rows=lambda nodes: site.rows.rows(nodes, page.style, now),
        sorts=SORTS,
        groupings=GROUPINGS,
        here=here,
        subject="",
        **values,
    )


async def _node(site: Site, asked: Asked, name: str) -> NodePage:
    state = needed(asked)
    node = state.nodes.get(name)
    if node is None:
        raise NotFound(f"the ledger knows no node {name!r}" + _then(asked))
    uuids = [card.uuid for card in node.cards]
    at = asked.moment.shown
    async with site.ledger.look() as connection:
        latest = await read_latest(connection, node=name, at=at)
        series = await read_series(connection, node=name, until=at, hours=CHART_HOURS)
        health = await read_health(connection, uuids, at)
        # What is found different names pods: for those who may read all names.
        all_names = asked.viewer.namespaces is None
        drift = await read_drift(connection, name, at) if all_names else []
    return node_page(
        node,
        latest=latest,
        series=series,
        health=health,
        drift=drift,
        now=at,
        past=asked.moment.past,
    )


async def _card(
    site: Site, asked: Asked, uuid: str, hours: int, after: tuple[datetime, str] | None
) -> tuple[CardPage, tuple[datetime, str] | None]:
    state = needed(asked)
    at = asked.moment.shown
    since = at - timedelta(hours=hours)
    node, card = _find(state, uuid)
    async with site.ledger.look() as connection:
        known = (card.node, card.index) if card else await node_of_card(connection, uuid)
        if known is None:
            raise NotFound(f"the ledger knows no card {uuid!r}")
        pictured = await read_held(connection, uuid, at=at, since=since, most=200)
        held = pictured
        if after is not None:
            held = await read_held(connection, uuid, at=at, since=since, after=after)
        health = await read_health(connection, [uuid], at)
        counts = await read_counts(connection, uuid, at)
        series = await read_series(
            connection, node=known[0], until=at, hours=hours, device_uuid=uuid
        )
        latest = await read_latest(connection, node=known[0], at=at)
    line = None
    if node is not None and card is not None:
        [line] = node_page(
            PageNode(name=node.name, source=node.source, heard_at=node.heard_at, cards=(card,)),
            latest=latest,
            series=(),
            health=health,
            drift=(),
            now=at,
            past=asked.moment.past,
        ).lines
    previous, following = neighbours(changes(pictured.periods, health), at)
    page = CardPage(
        uuid=uuid,
        node=known[0],
        index=known[1],
        card=card,
        line=line,
        counts=counts,
        held=held.periods[:PAGE_ROWS],
        lanes=lanes(
            *(pictured.periods, health, asked.viewer),
            since=pictured_since(pictured.periods, since, at),
            until=at,
        ),
        health=health[:50],
        charts=card_charts(uuid, series),
        previous_change=previous,
        next_change=following if asked.moment.past else None,
    )
    return page, held.after


def _find(state: PageCluster, uuid: str) -> tuple[PageNode | None, PageCard | None]:
    for node in state.nodes.values():
        for card in node.cards:
            if card.uuid == uuid:
                return node, card
    return None, None


def _uuid(state: PageCluster | None, name: str, index: int) -> str | None:
    node = None if state is None else state.nodes.get(name)
    if node is None:
        return None
    return next((card.uuid for card in node.cards if card.index == index), None)


def _then(asked: Asked) -> str:
    return " at that moment" if asked.moment.past else ""
