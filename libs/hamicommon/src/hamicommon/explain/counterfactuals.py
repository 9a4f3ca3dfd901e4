"""What would have made the pod fit: the engine is asked again with one thing changed.

In: a decision's `Record` with its view, and who held what then; out: `Counterfactual`s. Computed
when somebody reads. Each statement is an answer of the same engine on the very cards of the
decision, so it holds for every vendor and rule alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.explain.moment import changed, freed
from hamicommon.explain.wording import cards, counted, listed, selection
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide

Kind = Literal[
    "memory", "cores", "count", "selection", "policy", "pods-end", "uncordon", "healthy", "quota"
]

MOST_NODES_TRIED = 50
"""Nodes on which the end of pods is tried: those that miss the least."""
MOST_PODS_NAMED = 3
MOST_CARDS_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """One change that alone would have sufficed."""

    kind: Kind
    text: str
    container: str = ""
    limit: int | None = None
    """The largest amount that would have fitted: MiB, percent, or cards."""
    unit: str = ""
    node: NodeName | None = None
    pods: tuple[str, ...] = ()
    """`namespace/name` of those that must end."""
    cards: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHolding:
    """What one pod held of one card when it was decided; the effective footprint."""

    pod: str
    """`namespace/name`."""
    node: NodeName
    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int
    details: tuple[Mapping[str, Any], ...] = ()
    """`DeviceShare.detail` of its slices on the card that have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the ledger's history adds to a record."""

    holdings: Sequence[PodHolding] = ()
    unhealthy_since: Mapping[GpuUuid, datetime] = field(default_factory=dict)
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Vendor -> `memory`, `percent`, `core`, `count` -> resource name."""


def counterfactuals(
    request: PodRequest,
    view: ClusterView,
    candidates: Sequence[NodeName],
    about: Circumstances,
    new_view: Callable[[], ClusterView],
) -> Iterator[Counterfactual]:
    """What would have helped a pod that was refused on these candidates, the cheapest first."""
    fits = partial(_fits, view=view, candidates=candidates)
    for index, container in enumerate(request.containers):
        for number, wanted in enumerate(container.requests):
            change = partial(_with_request, request, index, number)
            names = dict(about.names).get(wanted.vendor, {})
            for found in _amounts(wanted, change, fits, names):
                several = sum(len(c.requests) for c in request.containers) > 1
                text = f"{found.text} in container {container.name}" if several else found.text
                yield replace(found, container=container.name, text=text)
    yield from _selections(request, fits)
    yield from _policies(request, fits)
    nodes = _nearest(request, view, candidates)
    yield from _cards_back(request, view, nodes, about, new_view)
    yield from _ends(request, view, nodes, about.holdings, new_view)


def _fits(request: PodRequest, *, view: ClusterView, candidates: Sequence[NodeName]) -> bool:
    return decide(request, view, candidates=candidates).placement is not None


def _with_request(
    request: PodRequest, container: int, number: int, wanted: DeviceRequest
) -> PodRequest:
    containers = list(request.containers)
    requests = list(containers[container].requests)
    requests[number] = wanted
    containers[container] = replace(containers[container], requests=tuple(requests))
    return replace(request, containers=tuple(containers))


def _amounts(
    wanted: DeviceRequest,
    change: Callable[[DeviceRequest], PodRequest],
    fits: Callable[[PodRequest], bool],
    names: Mapping[str, str],
) -> Iterator[Counterfactual]:
    """The largest memory, cores and count that would have fitted, each alone."""

    def with_field(field: str, amount: int) -> bool:
        asked = replace(wanted, **{field: amount})  # type: ignore[arg-type]  # one of its amounts
        return fits(change(asked))

    if wanted.memory_mib > 0:
        name, field, top, unit = names.get("memory", "memory"), "memory_mib", 0, "MiB"
        top = wanted.memory_mib
    else:
        name, field, unit = names.get("percent", "memory percentage"), "memory_percent", "percent"
        top = wanted.memory_percent or 0
    if (most := largest(partial(with_field, field), 1, top - 1)) is not None:
        text = f"fits if {name} <= {most}" + (" MiB" if unit == "MiB" else "")
        yield Counterfactual(kind="memory", text=text, limit=most, unit=unit)
    if wanted.core_percent > 0:
        top = min(wanted.core_percent, 100)
        most = largest(partial(with_field, "core_percent"), 0, top - 1)
        if most is not None:
            text = f"fits if {names.get('core', 'cores')} <= {most}"
            yield Counterfactual(kind="cores", text=text, limit=most, unit="percent")
    if (most := largest(partial(with_field, "count"), 1, wanted.count - 1)) is not None:
        text = f"fits if {names.get('count', 'the number of cards')} <= {most}"
        yield Counterfactual(kind="count", text=text, limit=most, unit="cards")


def largest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest amount in low..high that fits, or None; less always fits where more does."""
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _selections(
    request: PodRequest, fits: Callable[[PodRequest], bool]
) -> Iterator[Counterfactual]:
    """Each restriction of the annotations dropped alone, and all of them where only that helps."""
    for vendor, chosen in request.selections.items():
        restrictions = selection(chosen)
        found = False
        for restriction, phrase in restrictions:
            freer = replace(chosen, **{restriction: getattr(Selection(), restriction)})
            if fits(_with_selection(request, vendor, freer)):
                found = True
                yield Counterfactual(kind="selection", text=f"fits without {phrase}")
        freest = Selection(traits=chosen.traits)
        if len(restrictions) > 1 and not found and fits(_with_selection(request, vendor, freest)):
            every = " and ".join(phrase for _, phrase in restrictions)
            yield Counterfactual(kind="selection", text=f"fits without {every}")


def _with_selection(request: PodRequest, vendor: str, chosen: Selection) -> PodRequest:
    return replace(request, selections={**request.selections, vendor: chosen})


def _policies(request: PodRequest, fits: Callable[[PodRequest], bool]) -> Iterator[Counterfactual]:
    policy = request.policy
    if "mutex" in policy.gpu:
        gpu = tuple(key for key in policy.gpu if key != "mutex") or ("spread",)
        if fits(replace(request, policy=replace(policy, gpu=gpu))):
            yield Counterfactual(kind="policy", text="fits without card policy mutex")


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
            if not _fits(request, view=alone, candidates=[node]):
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
        if not pods or not _without(request, view, node, pods, list(pods), new_view):
            continue
        # The smallest first: who asks somebody to stop starts there.
        order = sorted(pods, key=lambda pod: (_weight(pods[pod]), pod))
        for pod in order:
            if named < MOST_PODS_NAMED and _without(request, view, node, pods, [pod], new_view):
                named += 1
                yield _end_of(node, [pod], pods, view)
        if not named:
            needed = _few(request, view, node, pods, order, new_view)
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
) -> list[str]:
    """Pods that must end together: of all, those are spared, smallest first, that need not."""
    needed = list(order)
    for pod in order:
        rest = [other for other in needed if other != pod]
        if _without(request, view, node, pods, rest, new_view):
            needed = rest
    return needed


def _without(
    request: PodRequest,
    view: ClusterView,
    node: NodeName,
    pods: Mapping[str, Sequence[PodHolding]],
    ended: Sequence[str],
    new_view: Callable[[], ClusterView],
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
    return _fits(request, view=alone, candidates=[node])


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
