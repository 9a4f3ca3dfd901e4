"""Tables of all nodes and of all pods that hold slices: to find one, and to compare. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from hami_metrics.pages.domain.cluster import (
    CardCondition,
    CardHolder,
    MeasuredUse,
    PageCard,
    PageCluster,
    PageNode,
    condition,
    silent,
)
from hami_metrics.pages.domain.details import LatestUse
from hami_metrics.pages.views.elements.amounts import share
from hami_metrics.pages.views.elements.viewer import PageViewer

Line = TypeVar("Line")
ROWS = 100
"""Of one page."""
NODE_SORTS = {
    "name": "name",
    "free": "most free memory",
    "used": "most granted memory",
    "problems": "problems first",
    "group": "rack or zone",
}
POD_SORTS = {
    "name": "name",
    "memory": "most memory",
    "cores": "most cores",
    "since": "newest",
    "node": "node",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPod:
    """One pod that holds slices."""

    uid: str
    namespace: str
    name: str
    node: str
    cards: Sequence[PageCard]
    memory_mib: int
    core_percent: int
    state: str
    since: datetime
    use: MeasuredUse | None = None

    @property
    def used(self) -> int | None:
        """Percent of what was granted; None is unknown."""
        return share(None if self.use is None else self.use.memory_mib, self.memory_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[Line]):
    """One page of a list."""

    lines: Sequence[Line]
    total: int
    """Lines that meet the filter."""
    of: int
    """All lines that the viewer may see."""
    first: int
    next: int | None
    """Where the next page begins; None: this is the last."""


def list_page(lines: Sequence[Line], of: int, first: int) -> ListPage[Line]:
    """The page that begins with line number `first`."""
    following = first + ROWS if first + ROWS < len(lines) else None
    return ListPage(
        lines=lines[first : first + ROWS], total=len(lines), of=of, first=first, next=following
    )


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


def pod_with_samples(line: ListedPod, samples: Sequence[LatestUse]) -> ListedPod:
    """The line with the newest samples of its slices, where nothing was summed up yet."""
    here = [one for one in samples if one.pod_uid == line.uid]
    if line.use is not None or not here:
        return line
    use = MeasuredUse(
        memory_mib=_sum(one.memory_mib for one in here),
        core_percent=_sum(one.core_percent for one in here),
        at=max(one.at for one in here),
    )
    return replace(line, use=use)


def _sum(values: Iterable[float | None]) -> float | None:
    """A part that is unknown makes the sum unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


class PodCache:
    """Pods of each node as they were made last: most nodes are the same from page to page."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[PageCard, ...], tuple[ListedPod, ...]]] = {}

    def lines(self, state: PageCluster) -> list[ListedPod]:
        """Of all nodes, in their order; those of nodes that are gone are forgotten."""
        self._known = {name: self._of(node) for name, node in state.nodes.items()}
        found: dict[str, ListedPod] = {}
        for _, lines in self._known.values():
            for line in lines:
                other = found.get(line.uid)
                found[line.uid] = line if other is None else _joined(other, line)
        return list(found.values())

    def _of(self, node: PageNode) -> tuple[tuple[PageCard, ...], tuple[ListedPod, ...]]:
        known = self._known.get(node.name)
        if known is not None and known[0] is node.cards:
            return known
        held: dict[str, list[tuple[PageCard, CardHolder]]] = {}
        for card in node.cards:
            for one in card.holders:
                held.setdefault(one.pod_uid, []).append((card, one))
        return node.cards, tuple(map(_pod_line, held.values()))


def _joined(one: ListedPod, other: ListedPod) -> ListedPod:
    """Of a pod that the ledger has on two nodes: an earlier attempt is about to end."""
    return replace(
        one,
        cards=[*one.cards, *other.cards],
        memory_mib=one.memory_mib + other.memory_mib,
        core_percent=one.core_percent + other.core_percent,
        since=min(one.since, other.since),
    )


def pod_lines(
    state: PageCluster,
    viewer: PageViewer,
    *,
    text: str,
    owner: str,
    sort: str,
    cache: PodCache | None = None,
) -> tuple[list[ListedPod], int]:
    """Pods whose names the viewer may read and that meet the filter, and how many there are."""
    every = (cache or PodCache()).lines(state)
    lines = every if viewer.namespaces is None else [x for x in every if viewer.sees(x.namespace)]
    wanted = text.lower()
    chosen = [
        line
        for line in lines
        if (not owner or line.namespace == owner)
        and (
            not wanted
            or wanted in f"{line.namespace}/{line.name}".lower()
            or wanted in line.node.lower()
        )
    ]
    return sorted(chosen, key=_POD_ORDER[sort]), len(lines)


_POD_ORDER: Mapping[str, Callable[[ListedPod], tuple[object, ...]]] = {
    "name": lambda line: (line.namespace, line.name, line.uid),
    "memory": lambda line: (-line.memory_mib, line.namespace, line.name, line.uid),
    "cores": lambda line: (-line.core_percent, line.namespace, line.name, line.uid),
    "since": lambda line: (-line.since.timestamp(), line.uid),
    "node": lambda line: (line.node, line.namespace, line.name, line.uid),
}


def _pod_line(held: Sequence[tuple[PageCard, CardHolder]]) -> ListedPod:
    card, holder = held[0]
    return ListedPod(
        uid=holder.pod_uid,
        namespace=holder.namespace,
        name=holder.pod_name,
        node=card.node,
        cards=[one for one, _ in held],
        memory_mib=sum(one.memory_mib for _, one in held),
        core_percent=sum(one.core_percent for _, one in held),
        state=holder.state,
        since=min(one.since for _, one in held),
    )
