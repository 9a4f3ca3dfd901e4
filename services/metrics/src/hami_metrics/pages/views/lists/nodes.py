"""The table of all nodes: which are shown, in which order, with what is used of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from hami_metrics.pages.domain.cluster import (
    CardCondition,
    PageCluster,
    PageNode,
    condition,
    silent,
)
from hami_metrics.pages.domain.details import LatestUse
from hami_metrics.pages.views.elements.amounts import share

NODE_SORTS = {
    "name": "name",
    "free": "most free memory",
    "used": "most granted memory",
    "problems": "problems first",
    "group": "rack or zone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedNode:
    """One node; None is unknown."""

    node: PageNode
    unheard: bool
    models: str
    held: int
    """Cards with at least one slice."""
    sick: int
    cordoned: int
    pods: int
    memory_mib: int
    granted_mib: int
    used_mib: float | None
    """Of its measured cards; None: none is measured."""
    core_used_percent: float | None
    """Mean over its measured cards."""
    granted: int | None
    used: int | None
    """Percent of the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """The nodes of one rack or zone that meet the filter."""

    nodes: int
    held: int
    cards: int
    sick: int


def node_lines(state: PageCluster, now: datetime, *, text: str, sort: str) -> list[ListedNode]:
    """Of the nodes whose name, rack or zone, or type of card has the text."""
    wanted = text.lower()
    lines = [
        _node_line(node, state, now)
        for node in state.nodes.values()
        if wanted in node.name.lower()
        or wanted in node.group.lower()
        or any(wanted in card.type.lower() for card in node.cards)
    ]
    return sorted(lines, key=_NODE_ORDER[sort])


_NODE_ORDER: Mapping[str, Callable[[ListedNode], tuple[object, ...]]] = {
    "name": lambda line: (line.node.name,),
    "free": lambda line: (line.granted_mib - line.memory_mib, line.node.name),
    "used": lambda line: (-line.granted_mib, line.node.name),
    "problems": lambda line: (-line.unheard, -line.sick, -line.cordoned, line.node.name),
    "group": lambda line: (not line.node.group, line.node.group, line.node.name),
}


def listed_groups(lines: Iterable[ListedNode]) -> dict[str, ListedGroup]:
    """By their name; those of no rack or zone have an empty one."""
    members: dict[str, list[ListedNode]] = {}
    for line in lines:
        members.setdefault(line.node.group, []).append(line)
    return {
        name: ListedGroup(
            nodes=len(found),
            held=sum(line.held for line in found),
            cards=sum(len(line.node.cards) for line in found),
            sick=sum(line.sick for line in found),
        )
        for name, found in members.items()
    }


def _node_line(node: PageNode, state: PageCluster, now: datetime) -> ListedNode:
    unheard = not state.past and silent(node, now)
    use = [found for card in node.cards if (found := state.use.get(card.uuid)) is not None]
    memory = [one.memory_mib for one in use if one.memory_mib is not None]
    cores = [one.core_percent for one in use if one.core_percent is not None]
    memory_mib = sum(card.memory_mib for card in node.cards)
    granted_mib = sum(card.used_memory_mib for card in node.cards)
    used_mib = sum(memory) if memory else None
    states = [condition(card, unheard=False) for card in node.cards]
    return ListedNode(
        node=node,
        unheard=unheard,
        models=", ".join(sorted({card.type for card in node.cards})),
        held=sum(bool(card.used_slots) for card in node.cards),
        sick=states.count(CardCondition.UNHEALTHY),
        cordoned=states.count(CardCondition.CORDONED),
        pods=len({one.pod_uid for card in node.cards for one in card.holders}),
        memory_mib=memory_mib,
        granted_mib=granted_mib,
        used_mib=used_mib,
        core_used_percent=sum(cores) / len(cores) if cores else None,
        granted=share(granted_mib, memory_mib),
        used=share(used_mib, memory_mib),
    )


def node_with_samples(line: ListedNode, samples: Sequence[LatestUse]) -> ListedNode:
    """The line with the newest samples of its cards, where nothing was summed up yet."""
    if line.used_mib is not None or line.unheard:
        return line
    uuids = {card.uuid for card in line.node.cards}
    here = [one for one in samples if not one.pod_uid and one.device_uuid in uuids]
    memory = [one.memory_mib for one in here if one.memory_mib is not None]
    cores = [one.core_percent for one in here if one.core_percent is not None]
    used_mib = sum(memory) if memory else None
    return replace(
        line,
        used_mib=used_mib,
        core_used_percent=sum(cores) / len(cores) if cores else line.core_used_percent,
        used=share(used_mib, line.memory_mib),
    )
