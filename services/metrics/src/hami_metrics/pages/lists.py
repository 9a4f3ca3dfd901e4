"""Pages `/nodes` and `/pods`: tables to search and compare, a hundred rows per page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from hamicommon.errors import InvalidRequest

from hami_metrics.domain.redaction import PageViewer
from hami_metrics.pages.amounts import sum_known
from hami_metrics.pages.cluster import (
    CardCondition,
    CardHolder,
    MeasuredUse,
    NodeSums,
    PageCard,
    PageCluster,
    PageNode,
    Row,
    SumCache,
)
from hami_metrics.pages.readings import read_use
from hami_metrics.pages.site import PageRequest, Site, choice_of, state_of, text_of

MAX_LINES = 10_000_000
PAGE_LINES = 100
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
    """Node in the table; None is unknown."""

    node: PageNode
    silent: bool
    sums: NodeSums
    pods: int
    granted_mib: int
    used_mib: float | None
    """Used memory of measured cards; None: none is measured."""
    core_used_percent: float | None
    """Mean core use of measured cards."""

    @property
    def sick(self) -> int:
        """Return the number of unhealthy cards."""
        return self.sums.count(CardCondition.UNHEALTHY)

    @property
    def cordoned(self) -> int:
        """Return the number of cordoned cards."""
        return self.sums.count(CardCondition.CORDONED)


_NODE_ORDER: Mapping[str, Callable[[ListedNode], tuple[object, ...]]] = {
    "name": lambda line: (line.node.name,),
    "free": lambda line: (line.granted_mib - line.sums.memory_mib, line.node.name),
    "used": lambda line: (-line.granted_mib, line.node.name),
    "problems": lambda line: (-line.silent, -line.sick, -line.cordoned, line.node.name),
    "group": lambda line: (not line.node.group, line.node.group, line.node.name),
}


def node_lines(
    state: PageCluster, *, text: str, sort: str, known: SumCache | None = None
) -> list[ListedNode]:
    """Return the nodes whose name, rack or zone, or type of card contains the text."""
    wanted, known = text.lower(), known or SumCache()
    lines = [
        _node_line(node, state, known)
        for node in state.nodes.values()
        if wanted in node.name.lower()
        or wanted in node.group.lower()
        or any(wanted in card.type.lower() for card in node.cards)
    ]
    return sorted(lines, key=_NODE_ORDER[sort])


def _node_line(node: PageNode, state: PageCluster, known: SumCache) -> ListedNode:
    use = [found for card in node.cards if (found := state.use.get(card.uuid)) is not None]
    memory = [one.memory_mib for one in use if one.memory_mib is not None]
    cores = [one.core_percent for one in use if one.core_percent is not None]
    return ListedNode(
        node=node,
        silent=state.is_silent(node),
        # The cards' own states: a silent agent is shown in a separate column.
        sums=known.node_sums(node, silent=False),
        pods=len({one.pod_uid for card in node.cards for one in card.holders}),
        granted_mib=sum(card.used_memory_mib for card in node.cards),
        used_mib=sum(memory) if memory else None,
        core_used_percent=sum(cores) / len(cores) if cores else None,
    )


def group_sums(lines: Iterable[ListedNode]) -> dict[str, dict[str, int]]:
    """Return the sums per rack or zone; nodes without one have the name ""."""
    members: dict[str, list[ListedNode]] = {}
    for line in lines:
        members.setdefault(line.node.group, []).append(line)
    return {
        name: {
            "nodes": len(found),
            "held": sum(line.sums.held for line in found),
            "cards": sum(len(line.node.cards) for line in found),
            "sick": sum(line.sick for line in found),
        }
        for name, found in members.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPod:
    """Pod that holds slices."""

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


_POD_ORDER: Mapping[str, Callable[[ListedPod], tuple[object, ...]]] = {
    "name": lambda line: (line.namespace, line.name, line.uid),
    "memory": lambda line: (-line.memory_mib, line.namespace, line.name, line.uid),
    "cores": lambda line: (-line.core_percent, line.namespace, line.name, line.uid),
    "since": lambda line: (-line.since.timestamp(), line.uid),
    "node": lambda line: (line.node, line.namespace, line.name, line.uid),
}


class PodCache:
    """Cache of each node's pods, which seldom change between requests."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[PageCard, ...], tuple[ListedPod, ...]]] = {}

    def lines(self, state: PageCluster) -> list[ListedPod]:
        """Return the pods of all nodes in order; former nodes are forgotten."""
        self._known = {name: self._of_node(node) for name, node in state.nodes.items()}
        found: dict[str, ListedPod] = {}
        for _, lines in self._known.values():
            for line in lines:
                other = found.get(line.uid)
                found[line.uid] = line if other is None else _merge_pods(other, line)
        return list(found.values())

    def _of_node(self, node: PageNode) -> tuple[tuple[PageCard, ...], tuple[ListedPod, ...]]:
        known = self._known.get(node.name)
        if known is not None and known[0] is node.cards:
            return known
        held: dict[str, list[tuple[PageCard, CardHolder]]] = {}
        for card in node.cards:
            for one in card.holders:
                held.setdefault(one.pod_uid, []).append((card, one))
        return node.cards, tuple(map(_pod_line, held.values()))


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


def _merge_pods(one: ListedPod, other: ListedPod) -> ListedPod:
    """Combine two rows of a pod that the ledger has on two nodes, because an attempt is ending."""
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
    """Return the matching pods that the viewer may see, and their number."""
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


def with_use(lines: Iterable[ListedPod], rows: Iterable[Row]) -> list[ListedPod]:
    """Add the measured use of each pod's slices; an unknown slice makes the sum unknown."""
    slices: dict[str, list[Row]] = {}
    for row in rows:
        slices.setdefault(row["pod_uid"], []).append(row)
    return [
        line
        if line.uid not in slices
        else replace(
            line,
            use=MeasuredUse(
                memory_mib=sum_known(row["memory_mib"] for row in slices[line.uid]),
                core_percent=sum_known(row["core_percent"] for row in slices[line.uid]),
                at=max(row["at"] for row in slices[line.uid]),
            ),
        )
        for line in lines
    ]


def routes(site: Site) -> APIRouter:
    """Serve both lists."""
    router = APIRouter()
    pods_now = PodCache()

    def answer(
        asked: PageRequest, name: str, lines: Sequence[Any], of: int, first: int, **values: Any
    ) -> Response:
        """Make one page of a list; `of`: all lines that the viewer may see."""
        following = first + PAGE_LINES
        page = {
            "lines": lines[first:following],
            "total": len(lines),
            "of": of,
            "first": first,
            "next": following if following < len(lines) else None,
        }
        return site.answer(asked, f"{name}.html", page=page, here=name, **values)

    @router.get("/nodes")
    async def nodes(request: Request) -> Response:
        asked = await site.open_request(request)
        state = state_of(asked)
        sort = choice_of(request, "sort", NODE_SORTS, "name")
        chosen = {"q": text_of(request, "q"), "sort": sort}
        lines = node_lines(state, text=chosen["q"], sort=sort)
        return answer(
            asked,
            "nodes",
            lines,
            len(state.nodes),
            _first(request),
            chosen=chosen,
            sorts=NODE_SORTS,
            labelled=any(node.group for node in state.nodes.values()),
            groups=group_sums(lines) if sort == "group" else {},
        )

    @router.get("/pods")
    async def pods(request: Request) -> Response:
        asked = await site.open_request(request)
        state, first = state_of(asked), _first(request)
        owner, sort = text_of(request, "owner"), choice_of(request, "sort", POD_SORTS, "name")
        chosen = {"q": text_of(request, "q"), "owner": owner, "sort": sort}
        lines, of = pod_lines(
            state,
            asked.viewer,
            text=chosen["q"],
            owner=owner,
            sort=sort,
            # Moments of the past come and go: theirs would drive out those of now.
            cache=None if state.past else pods_now,
        )
        shown = lines[first : first + PAGE_LINES]
        if shown:
            async with site.ledger.look() as connection:
                use = await read_use(
                    connection,
                    sorted({line.node for line in shown}),
                    asked.moment.shown,
                    uids=[line.uid for line in shown],
                    summed=True,
                )
            lines[first : first + PAGE_LINES] = with_use(shown, use)
        return answer(
            asked,
            "pods",
            lines,
            of,
            first,
            chosen=chosen,
            sorts=POD_SORTS,
            namespaces=sorted(filter(asked.viewer.sees, site.sums(state).held_mib)),
        )

    return router


def _first(request: Request) -> int:
    text = text_of(request, "first") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= MAX_LINES):
        raise InvalidRequest("first: this number is not from a link of this list; leave it out")
    return int(text)
