"""`/nodes` and `/pods`: all of them, a hundred a page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fastapi import APIRouter, Request, Response
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.connection import Connection

from hami_metrics.pages.domain.details import LatestUse
from hami_metrics.pages.reading.usage import read_newest, read_pods_use
from hami_metrics.pages.views.lists.nodes import (
    NODE_SORTS,
    ListedNode,
    listed_groups,
    node_lines,
    node_with_samples,
)
from hami_metrics.pages.views.lists.paging import ListPage, list_page
from hami_metrics.pages.views.lists.pods import (
    POD_SORTS,
    ListedPod,
    PodCache,
    pod_lines,
    pod_with_samples,
)
from hami_metrics.pages.web.site import Asked, Site, choice_of, needed, text_of

MOST_LINES = 10_000_000


def routes(site: Site) -> APIRouter:
    """On the parts of `site`."""
    router = APIRouter()
    pods_now = PodCache()

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
            page=await _with_samples(
                site, asked, list_page(lines, len(state.nodes), _first(request))
            ),
            chosen=chosen,
            sorts=NODE_SORTS,
            labelled=any(node.group for node in state.nodes.values()),
            groups=listed_groups(lines) if chosen["sort"] == "group" else {},
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
            # Moments of the past come and go: theirs would drive out those of now.
            cache=None if state.past else pods_now,
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
        lines = [replace(line, use=use.get(line.uid)) for line in page.lines]
        unknown = [line for line in lines if line.use is None]
        samples = await _samples(
            *(connection, asked),
            nodes={line.node for line in unknown},
            uids=[line.uid for line in unknown],
        )
    return replace(page, lines=[pod_with_samples(line, samples) for line in lines])


async def _with_samples(
    site: Site, asked: Asked, page: ListPage[ListedNode]
) -> ListPage[ListedNode]:
    """Until five minutes are summed up, the newest samples stand for them."""
    nodes = {line.node.name for line in page.lines if line.used_mib is None and not line.unheard}
    if not nodes:
        return page
    async with site.ledger.look() as connection:
        samples = await _samples(connection, asked, nodes=nodes, uids=[""])
    by_node = [node_with_samples(line, samples) for line in page.lines]
    return replace(page, lines=by_node)


async def _samples(
    connection: Connection, asked: Asked, *, nodes: Collection[str], uids: Sequence[str]
) -> list[LatestUse]:
    if not nodes:
        return []
    return await read_newest(connection, nodes=sorted(nodes), uids=uids, at=asked.moment.shown)


def _first(request: Request) -> int:
    text = text_of(request, "first") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= MOST_LINES):
        raise InvalidRequest("first: it is made by the link to the next page; leave it out")
    return int(text)
