"""Page `/`: an overview of cards, holders and waiting pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request, Response

from hami_metrics.domain.redaction import OTHER, PageViewer
from hami_metrics.pages.cluster import (
    PROBLEMS,
    CardCondition,
    ClusterSums,
    PageCluster,
    PageNode,
    Row,
    SumCache,
    condition,
)
from hami_metrics.pages.grid import MAX_NAMING_NODES, GridStyle, grid_style
from hami_metrics.pages.site import PageRequest, Site, choice_of, text_of

MAX_RECENT_PODS = 12
MAX_OWNERS = 8
"""Maximum number of namespaces in the line of owners."""
NODES_OF_A_GROUP = 50
"""Number of nodes per group, if they have no racks."""
NAME_WIDTHS = (8, 14, 24, 40)
"""Widths in characters of the grid's column of node names (`static/hami.css`)."""
GROUPINGS = {"label": "rack or zone", "name": "name"}
"""Ways of grouping nodes; without such labels only by name."""
UNGROUPED = "without a rack or zone"
SORTS = {"name": "name", "free": "most free memory", "used": "most granted memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFilter:
    """Choices in the page's address; empty texts select all."""

    text: str = ""
    model: str = ""
    owner: str = ""
    problems: bool = False
    sort: str = "name"
    group: str = "label"
    unfold: bool = False

    def query(self) -> dict[str, str]:
        """Return the choices as pairs of a query string, without defaults."""
        chosen = {
            "q": self.text,
            "model": self.model,
            "owner": self.owner,
            "z": "1" if self.problems else "",
            "sort": "" if self.sort == "name" else self.sort,
            "group": "" if self.group == "label" else self.group,
            "open": "all" if self.unfold else "",
        }
        return {name: value for name, value in chosen.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Group of nodes; folded if there are many and none has a problem."""

    name: str
    label: str
    """Value of the nodes' label; empty: none, or grouped by name."""
    nodes: Sequence[PageNode]
    held: int
    free: int
    sick: int
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Values for the grid's template."""

    sums: ClusterSums
    groups: Sequence[NodeGroup]
    labelled: bool
    """Whether a node has a group by label, so that there is a choice."""
    style: GridStyle
    owners: Sequence[tuple[str, float]]
    """Pairs of namespace (if visible) and percent of all granted memory, the largest first."""
    nodes: int
    shown: int
    name_width: str
    """CSS class of the names' column, by the longest name."""
    filter: GridFilter
    recent: Sequence[Row]
    """Last change of each of the pods that changed last."""


def grid_page(
    state: PageCluster,
    sums: ClusterSums,
    chosen: GridFilter,
    style: GridStyle,
    sum_cache: SumCache | None = None,
) -> Overview:
    """Select, sort and group the nodes; `sum_cache`: cached sums."""
    nodes = [node for node in state.nodes.values() if _is_chosen(node, state, style.viewer, chosen)]
    if chosen.sort == "free":
        nodes.sort(key=lambda node: -sum(card.free_mib for card in node.cards))
    if chosen.sort == "used":
        nodes.sort(key=lambda node: -sum(card.used_memory_mib for card in node.cards))
    granted_mib = sum(sums.held_mib.values()) or 1
    newest: dict[str, Row] = {}
    for one in state.recent:
        newest.setdefault(one["pod_uid"], one)
    longest = max((len(node.name) for node in nodes), default=0)
    widths = (width for width in NAME_WIDTHS if longest <= width)
    return Overview(
        sums=sums,
        groups=_groups(nodes, state, chosen, style, sum_cache or SumCache()),
        labelled=any(node.group for node in state.nodes.values()),
        style=style,
        owners=[
            (name, 100 * mib / granted_mib)
            for name, mib in sums.held_mib.items()
            # A namespace that may not be named is not listed as an owner.
            if style.viewer.namespace(name) == name != OTHER
        ],
        nodes=len(state.nodes),
        shown=len(nodes),
        name_width=f"w{next(widths, NAME_WIDTHS[-1])}",
        filter=chosen,
        recent=list(newest.values())[:MAX_RECENT_PODS],
    )


def _is_chosen(node: PageNode, state: PageCluster, viewer: PageViewer, chosen: GridFilter) -> bool:
    holders = [one for card in node.cards for one in card.holders]
    if chosen.text and not _has_text(node, chosen.text.lower(), viewer):
        return False
    if chosen.model and not any(card.type == chosen.model for card in node.cards):
        return False
    if chosen.owner and not any(viewer.namespace(one.namespace) == chosen.owner for one in holders):
        return False
    if not chosen.problems or state.is_silent(node):
        return True
    return any(condition(card, silent=False) in PROBLEMS for card in node.cards)


def _has_text(node: PageNode, text: str, viewer: PageViewer) -> bool:
    if text in node.name.lower() or text in node.group.lower():
        return True
    return any(
        text in card.uuid.lower()
        or text in card.type.lower()
        or any(
            viewer.sees(one.namespace) and text in f"{one.namespace}/{one.pod_name}".lower()
            for one in card.holders
        )
        for card in node.cards
    )


def _groups(
    nodes: list[PageNode],
    state: PageCluster,
    chosen: GridFilter,
    style: GridStyle,
    sum_cache: SumCache,
) -> list[NodeGroup]:
    groups = []
    for position, (name, label, part) in enumerate(_parts(nodes, chosen)):
        found = [sum_cache.node_sums(node, silent=state.is_silent(node)) for node in part]
        sick = sum(one.count(*PROBLEMS) for one in found)
        differs = bool(style.differing) and any(
            card.uuid in style.differing for node in part for card in node.cards
        )
        groups.append(
            NodeGroup(
                name=name,
                label=label,
                nodes=part,
                held=sum(one.held for one in found),
                free=sum(one.count(CardCondition.FREE) for one in found),
                sick=sick,
                open=chosen.unfold
                or bool(sick)
                or differs
                or len(nodes) <= MAX_NAMING_NODES
                or position == 0,
            )
        )
    return groups


def _parts(nodes: list[PageNode], chosen: GridFilter) -> list[tuple[str, str, list[PageNode]]]:
    """Return name, label and nodes of each rack, nodes without one last.

    Without racks so many nodes at a time stand together, by name.
    """
    if chosen.group == "label" and any(node.group for node in nodes):
        racks: dict[str, list[PageNode]] = {}
        for node in nodes:
            racks.setdefault(node.group, []).append(node)
        order = sorted(racks, key=lambda name: (not name, name))
        return [(name or UNGROUPED, name, racks[name]) for name in order]
    starts = range(0, len(nodes), NODES_OF_A_GROUP)
    parts = [nodes[start : start + NODES_OF_A_GROUP] for start in starts]
    return [(_from_to(part), "", part) for part in parts]


def _from_to(part: list[PageNode]) -> str:
    return part[0].name if len(part) == 1 else f"{part[0].name} to {part[-1].name}"


def routes(site: Site) -> APIRouter:
    """Serve the overview."""
    router = APIRouter()

    @router.get("/")
    async def overview(request: Request) -> Response:
        asked = await site.open_request(request)
        return answer_with_grid(site, asked, request, "overview.html", here="overview")

    return router


def answer_with_grid(
    site: Site,
    asked: PageRequest,
    request: Request,
    template: str,
    *,
    differing: frozenset[str] = frozenset(),
    **values: Any,
) -> Response:
    """Return a page with the grid; `differing`: cards that differ from now."""
    chosen = GridFilter(
        text=text_of(request, "q"),
        model=text_of(request, "model"),
        owner=text_of(request, "owner"),
        problems=text_of(request, "z") == "1",
        sort=choice_of(request, "sort", SORTS, "name"),
        group=choice_of(request, "group", GROUPINGS, "label"),
        unfold=text_of(request, "open") == "all",
    )
    state = asked.state
    if state is None:
        return site.answer(asked, "states/nothing.html", status=503, **values)
    style = grid_style(state, asked.viewer)
    style = replace(style, at=asked.moment.query, differing=differing)
    # Moments of the past come and go: their sums would drive out those of now.
    known = None if state.past else site.sum_cache
    page = grid_page(state, site.sums(state), chosen, style, known)
    return site.answer(
        asked,
        template,
        page=page,
        lines=lambda nodes: site.lines.lines(state, nodes, style),
        sorts=SORTS,
        groupings=GROUPINGS,
        max_owners=MAX_OWNERS,
        **values,
    )
