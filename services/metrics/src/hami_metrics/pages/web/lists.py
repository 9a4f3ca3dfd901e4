"""`/nodes` and `/pods`: all of them, a hundred a page."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request, Response
from hamicommon.errors import InvalidRequest

from hami_metrics.pages.reading.usage import read_pods_use
from hami_metrics.pages.views.lists import (
    NODE_SORTS,
    POD_SORTS,
    ListedPod,
    ListPage,
    list_page,
    node_lines,
    pod_lines,
)
from hami_metrics.pages.web.site import Asked, Site, choice_of, needed, text_of

MOST_LINES = 10_000_000


def routes(site: Site) -> APIRouter:
    """On the parts of `site`."""
    router = APIRouter()

    @router.get("/nodes")
    async def nodes(request: Request) -> Response:
        asked = await site.asked(request)
        state = needed(asked)
        chosen = {
            "q": text_of(request, "q"),
            "sort": choice_of(request, "sort", NODE_SORTS, "name"),
        }
        lines = node_lines(state, asked.moment.shown, text=chosen["q"], sort=chosen["sort"])
        return site.answer(
            asked,
            "nodes.html",
            page=list_page(lines, len(state.nodes), _first(request)),
            chosen=chosen,
            sorts=NODE_SORTS,
            here="nodes",
            subject="",
        )

    @router.get("/pods")
    async def pods(request: Request) -> Response:
        asked = await site.asked(request)
        state = needed(asked)
        chosen = {
            "q": text_of(request, "q"),
            "owner": text_of(request, "owner"),
            "sort": choice_of(request, "sort", POD_SORTS, "name"),
        }
        lines, of = pod_lines(
            *(state, asked.viewer),
            text=chosen["q"],
            owner=chosen["owner"],
            sort=chosen["sort"],
        )
        page = await _with_use(site, asked, list_page(lines, of, _first(request)))
        return site.answer(
            asked,
            "pods.html",
            page=page,
            chosen=chosen,
            sorts=POD_SORTS,
            namespaces=sorted(filter(asked.viewer.sees, site.totals(state).held)),
            here="pods",
            subject="",
        )

    return router


async def _with_use(site: Site, asked: Asked, page: ListPage[ListedPod]) -> ListPage[ListedPod]:
    """What was measured of the page's pods alone."""
    if not page.lines:
        return page
    async with site.ledger.look() as connection:
        use = await read_pods_use(
            connection,
            nodes=sorted({line.node for line in page.lines}),
            uids=[line.uid for line in page.lines],
            at=asked.moment.shown,
        )
    return replace(page, lines=[replace(line, use=use.get(line.uid)) for line in page.lines])


def _first(request: Request) -> int:
    text = text_of(request, "first") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= MOST_LINES):
        raise InvalidRequest("first: it is made by the link to the next page; leave it out")
    return int(text)
