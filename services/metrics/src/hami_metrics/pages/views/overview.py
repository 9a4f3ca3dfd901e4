"""The overview: what there is, who holds it, what waits, in one screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from hami_metrics.pages.domain.capacity import NodeTallies, Totals
from hami_metrics.pages.domain.cluster import (
    PROBLEMS,
    CardCondition,
    Occurrence,
    PageCluster,
    PageNode,
    condition,
    silent,
)
from hami_metrics.pages.views.elements.grid import NAMED_UP_TO, ROOMY_UP_TO, GridStyle
from hami_metrics.pages.views.elements.owners import OwnerLetters, owners
from hami_metrics.pages.views.elements.viewer import OTHER, PageViewer

RECENT_PODS = 12
GROUP = 50
"""Nodes that are folded together."""
NAME_WIDTHS = (8, 14, 24, 40)
"""Characters of a node's name that the grid's first column may have (`static/hami.css`)."""
GROUPINGS = {"label": "rack or zone", "name": "name"}
"""By what nodes stand together, where they have such labels; else it is by name."""
UNGROUPED = "without a rack or zone"
SORTS = {
    "name": "name",
    "free": "most free memory",
    "used": "most granted memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFilter:
    """What the page's address chooses; an empty text chooses all."""

    text: str = ""
    model: str = ""
    owner: str = ""
    problems: bool = False
    sort: str = "name"
    group: str = "label"
    unfold: bool = False

    def query(self) -> dict[str, str]:
        """As the address has it, without what is usual."""
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
    """Some nodes that stand together; folded when there are many and nothing is wrong."""

    name: str
    label: str
    """The value of the nodes' label; empty: they have none, or stand together by name."""
    nodes: Sequence[PageNode]
    held: int
    free: int
    sick: int
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything that the template asks for."""

    totals: Totals
    sick: int
    unheard: int
    """Cards whose state is unknown, since nothing is heard of their agents."""
    groups: Sequence[NodeGroup]
    labelled: bool
    """Some node has a group of its own, so there is a choice."""
    style: GridStyle
    owners: OwnerLetters
    namespaces: Sequence[str]
    nodes: int
    shown: int
    name_width: str
    """Class of the column of names, by the longest."""
    filter: GridFilter
    recent: Sequence[Occurrence]
    """The last thing that became of each of the pods that something became of."""


def overview(
    state: PageCluster,
    sums: Totals,
    viewer: PageViewer,
    chosen: GridFilter,
    now: datetime,
    at: str = "",
    differing: frozenset[str] = frozenset(),
    *,
    tallies: NodeTallies | None = None,
) -> Overview:
    """`at`: the query of links, where the state is one of the past; `differing`: cards that are
    marked as not being so now; `tallies`: what was counted before, None: count all."""
    nodes = _sorted(_chosen(state, viewer, chosen, now), chosen.sort)
    style = replace(grid_style(state, sums, viewer, now, at), differing=differing)
    labelled = any(node.group for node in state.nodes.values())
    return Overview(
        totals=sums,
        sick=sums.counts[CardCondition.UNHEALTHY],
        unheard=sums.counts[CardCondition.UNKNOWN],
        groups=_groups(nodes, state, chosen, now, differing, tallies or NodeTallies()),
        labelled=labelled,
        style=style,
        owners=style.owners,
        namespaces=sorted(_held_as_seen(sums, viewer)),
        nodes=len(state.nodes),
        shown=len(nodes),
        name_width=_name_width(nodes),
        filter=chosen,
        recent=_recent(state.recent),
    )


def _recent(occurrences: Sequence[Occurrence]) -> list[Occurrence]:
    newest: dict[str, Occurrence] = {}
    for one in occurrences:
        newest.setdefault(one.pod_uid, one)
    return list(newest.values())[:RECENT_PODS]


def _name_width(nodes: list[PageNode]) -> str:
    longest = max((len(node.name) for node in nodes), default=0)
    return next((f"w{most}" for most in NAME_WIDTHS if longest <= most), f"w{NAME_WIDTHS[-1]}")


def grid_style(
    state: PageCluster, sums: Totals, viewer: PageViewer, now: datetime, at: str = ""
) -> GridStyle:
    """What all cells of the page share."""
    return GridStyle(
        owners=owners(_held_as_seen(sums, viewer), now),
        viewer=viewer,
        named=len(state.nodes) <= NAMED_UP_TO,
        past=state.past,
        roomy=len(state.nodes) <= ROOMY_UP_TO,
        at=at,
    )


def _held_as_seen(sums: Totals, viewer: PageViewer) -> dict[str, int]:
    """Who may not be named has no letter."""
    return {name: mib for name, mib in sums.held.items() if viewer.namespace(name) == name != OTHER}


def _chosen(
    state: PageCluster, viewer: PageViewer, chosen: GridFilter, now: datetime
) -> list[PageNode]:
    text = chosen.text.lower()
    return [
        node
        for node in state.nodes.values()
        if (not text or _meets(node, text, viewer))
        and (not chosen.model or any(card.type == chosen.model for card in node.cards))
        and (not chosen.owner or _holds(node, chosen.owner, viewer))
        and (not chosen.problems or _has_problem(node, state, now))
    ]


def _meets(node: PageNode, text: str, viewer: PageViewer) -> bool:
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


def _holds(node: PageNode, owner: str, viewer: PageViewer) -> bool:
    return any(
        viewer.namespace(one.namespace) == owner for card in node.cards for one in card.holders
    )


def _has_problem(node: PageNode, state: PageCluster, now: datetime) -> bool:
    if not state.past and silent(node, now):
        return True
    return any(condition(card, unheard=False) in PROBLEMS for card in node.cards)


def _sorted(nodes: list[PageNode], sort: str) -> list[PageNode]:
    if sort == "free":
        return sorted(nodes, key=lambda node: -sum(card.free_mib for card in node.cards))
    if sort == "used":
        return sorted(nodes, key=lambda node: -sum(card.used_memory_mib for card in node.cards))
    return nodes


def _groups(
    nodes: list[PageNode],
    state: PageCluster,
    chosen: GridFilter,
    now: datetime,
    differing: frozenset[str],
    tallies: NodeTallies,
) -> list[NodeGroup]:
    groups = []
    for position, (name, label, part) in enumerate(_parts(nodes, chosen)):
        found = [tallies.of(node, unheard=not state.past and silent(node, now)) for node in part]
        sick = sum(one.sick for one in found)
        groups.append(
            NodeGroup(
                name=name,
                label=label,
                nodes=part,
                held=sum(one.held for one in found),
                free=sum(one.free for one in found),
                sick=sick,
                open=chosen.unfold
                or bool(sick)
                or len(nodes) <= NAMED_UP_TO
                or position == 0
                or (
                    bool(differing)
                    and any(card.uuid in differing for node in part for card in node.cards)
                ),
            )
        )
    return groups


def _parts(nodes: list[PageNode], chosen: GridFilter) -> list[tuple[str, str, list[PageNode]]]:
    """Nodes of one rack, those without one last; without racks so many at a time, by name.

    Each with its name and its label.
    """
    if chosen.group == "label" and any(node.group for node in nodes):
        racks: dict[str, list[PageNode]] = {}
        for node in nodes:
            racks.setdefault(node.group, []).append(node)
        order = sorted(racks, key=lambda name: (not name, name))
        return [(name or UNGROUPED, name, racks[name]) for name in order]
    parts = [nodes[start : start + GROUP] for start in range(0, len(nodes), GROUP)]
    return [(_from_to(part), "", part) for part in parts]


def _from_to(part: list[PageNode]) -> str:
    return part[0].name if len(part) == 1 else f"{part[0].name} to {part[-1].name}"
