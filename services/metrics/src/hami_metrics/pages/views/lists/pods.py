"""The table of all pods that hold slices, as far as the viewer may read their names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from hami_metrics.pages.domain.cluster import (
    CardHolder,
    MeasuredUse,
    PageCard,
    PageCluster,
    PageNode,
)
from hami_metrics.pages.domain.details import LatestUse
from hami_metrics.pages.views.elements.amounts import share
from hami_metrics.pages.views.elements.viewer import PageViewer

POD_SORTS = {
    "name": "name",
    "memory": "most memory",
    "cores": "most cores",
    "since": "newest",
    "node": "node",
}


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
