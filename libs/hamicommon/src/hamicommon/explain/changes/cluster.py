"""Changes of the cluster with which the pod would have fitted: cards back, pods that end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.circumstances import Circumstances, Counterfactual, Kind, PodHolding
from hamicommon.explain.moment import changed, freed
from hamicommon.explain.wording import cards, counted, listed
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide

MOST_NODES_TRIED = 50
"""Nodes on which the end of pods is tried: those that miss the least."""
MOST_PODS_NAMED = 3
MOST_CARDS_NAMED = 3


class SearchTimeout(Exception):
    """The time budget of a search is spent."""


class Trials:
    """Ask the engine about changed pods and clusters until a time budget is spent.

    The number of questions grows with the containers of a pod, which a tenant chooses.
    """

    def __init__(self, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_at = clock() + budget_s

    def fits(
        self, request: PodRequest, *, view: ClusterView, candidates: Sequence[NodeName]
    ) -> bool:
        """Return whether the engine places the pod on one of the candidates.

        Raises: SearchTimeout when the budget is spent.
        """
        if self._clock() > self._ends_at:
            raise SearchTimeout
        return decide(request, view, candidates=candidates).placement is not None


def cluster_changes(
    request: PodRequest,
    view: ClusterView,
    candidates: Sequence[NodeName],
    about: Circumstances,
    new_view: Callable[[], ClusterView],
    trials: Trials,
) -> Iterator[Counterfactual]:
    """Each change on a node that alone would have sufficed, on the nodes that miss the least."""
    nodes = _nearest(request, view, candidates)
    yield from _cards_back(request, view, nodes, about, new_view, trials)
    yield from _ends(request, view, nodes, about.holdings, new_view, trials)


def _nearest(
    request: PodRequest, view: ClusterView, candidates: Sequence[NodeName]
) -> list[NodeName]:
    """Nodes that would fit if everything on them ended, were uncordoned and healthy."""
    refusal = decide(request, view, candidates=candidates).refusal
    if refusal is None:
        return []
    short = {
        node: sum(max(0, card.requested - card.available) for card in refusal.shortfalls[node])
        for node in refusal.shortfalls
    }
    return sorted(short, key=lambda node: (short[node], node))[:MOST_NODES_TRIED]


def _cards_back(
    request: PodRequest,
    view: ClusterView,
    nodes: Sequence[NodeName],
    about: Circumstances,
    new_view: Callable[[], ClusterView],
    trials: Trials,
) -> Iterator[Counterfactual]:
    """Cards that are cordoned or unhealthy, one at a time."""
    named = {"uncordon": 0, "healthy": 0}
    for node in nodes:
        for usage, _ in view.cards(node):
            uuid = usage.device.uuid
            kind: Kind
            if usage.cordoned and usage.device.healthy:
                kind, back = "uncordon", replace(usage, cordoned=False)
            elif not usage.device.healthy and not usage.cordoned:
                kind, back = "healthy", replace(usage, device=replace(usage.device, healthy=True))
            else:
                continue
            if named[kind] == MOST_CARDS_NAMED:
                continue
            alone = changed(view, node, {uuid: partial(_instead, back)}, new_view)
            if not trials.fits(request, view=alone, candidates=[node]):
                continue
            named[kind] += 1
            text = _card_back_text(kind, node, usage, about)
            yield Counterfactual(kind=kind, text=text, node=node, cards=(uuid,))


def _instead(back: DeviceUsage, usage: DeviceUsage) -> DeviceUsage:
    del usage
    return back


def _card_back_text(kind: Kind, node: NodeName, usage: DeviceUsage, about: Circumstances) -> str:
    card = f"card {usage.device.index} ({usage.device.uuid}) on {node}"
    if kind == "uncordon":
        return f"fits when {card} is uncordoned"
    since = dict(about.unhealthy_since).get(usage.device.uuid)
    parts = [usage.device.health_reason or "unhealthy"]
    if since is not None:
        parts.append(f"since {since.isoformat(timespec='seconds')}")
    return f"fits when {card} is healthy again ({' '.join(parts)})"


def _ends(
    request: PodRequest,
    view: ClusterView,
    nodes: Sequence[NodeName],
    holdings: Sequence[PodHolding],
    new_view: Callable[[], ClusterView],
    trials: Trials,
) -> Iterator[Counterfactual]:
    """Single pods whose end suffices; if there are none, the fewest on one node."""
    by_node: dict[NodeName, dict[str, list[PodHolding]]] = {}
    for one in holdings:
        by_node.setdefault(one.node, {}).setdefault(one.pod, []).append(one)
    own = f"{request.namespace}/{request.name}"
    named = 0
    fewest: tuple[NodeName, list[str]] | None = None
    for node in nodes:
        pods = {pod: held for pod, held in by_node.get(node, {}).items() if pod != own}
        if not pods or not _without(request, view, node, pods, list(pods), new_view, trials):
            continue
        # The smallest first: who asks somebody to stop starts there.
        order = sorted(pods, key=lambda pod: (_weight(pods[pod]), pod))
        for pod in order:
            if named < MOST_PODS_NAMED and _without(
                request, view, node, pods, [pod], new_view, trials
            ):
                named += 1
                yield _end_of(node, [pod], pods, view)
        if not named:
            needed = _few(request, view, node, pods, order, new_view, trials)
            if fewest is None or len(needed) < len(fewest[1]):
                fewest = (node, needed)
        if named == MOST_PODS_NAMED:
            return
    if not named and fewest is not None:
        node, needed = fewest
        yield _end_of(node, needed, by_node[node], view)


def _few(
    request: PodRequest,
    view: ClusterView,
    node: NodeName,
    pods: Mapping[str, Sequence[PodHolding]],
    order: Sequence[str],
    new_view: Callable[[], ClusterView],
    trials: Trials,
) -> list[str]:
    """Pods that must end together: of all, those are spared, smallest first, that need not."""
    needed = list(order)
    for pod in order:
        rest = [other for other in needed if other != pod]
        if _without(request, view, node, pods, rest, new_view, trials):
            needed = rest
    return needed


def _without(
    request: PodRequest,
    view: ClusterView,
    node: NodeName,
    pods: Mapping[str, Sequence[PodHolding]],
    ended: Sequence[str],
    new_view: Callable[[], ClusterView],
    trials: Trials,
) -> bool:
    """True when the pod fits on the node after these have ended."""
    given: dict[GpuUuid, list[PodHolding]] = {}
    for pod in ended:
        for one in pods[pod]:
            given.setdefault(one.uuid, []).append(one)
    back = {
        uuid: partial(
            freed,
            slots=sum(one.slots for one in held),
            memory_mib=sum(one.memory_mib for one in held),
            core_percent=sum(one.core_percent for one in held),
            details=[detail for one in held for detail in one.details],
        )
        for uuid, held in given.items()
    }
    alone = changed(view, node, back, new_view)
    return trials.fits(request, view=alone, candidates=[node])


def _weight(held: Sequence[PodHolding]) -> tuple[int, int]:
    return sum(one.memory_mib for one in held), sum(one.core_percent for one in held)


def _end_of(
    node: NodeName,
    ended: Sequence[str],
    pods: Mapping[str, Sequence[PodHolding]],
    view: ClusterView,
) -> Counterfactual:
    index = {usage.device.uuid: usage.device.index for usage, _ in view.cards(node)}
    uuids = tuple(sorted({one.uuid for pod in ended for one in pods[pod]}))
    if len(ended) == 1:
        held = [
            f"{one.memory_mib} MiB"
            + (f" and {one.core_percent} %" if one.core_percent else "")
            + f" of card {index.get(one.uuid, '?')}"
            for one in sorted(pods[ended[0]], key=lambda one: index.get(one.uuid, -1))
        ]
        text = f"fits when pod {ended[0]} on {node} ends (it holds {listed(held)})"
    else:
        text = (
            f"fits when {counted(len(ended), 'pod')} on {node} end: {listed(ended, 5)} "
            f"(they hold {cards(len(uuids))})"
        )
    return Counterfactual(kind="pods-end", text=text, node=node, pods=tuple(ended), cards=uuids)
