"""Find changes that would have let a refused pod fit, by asking the engine again for each.

Input: a request with the cards of its decision, and which pods held what then. Output:
`Counterfactual`s, computed when the explanation is read. Each statement is an answer of the same
engine on exactly the cards of the decision, so it holds for every vendor and rule alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.explain.sentences import cards, count_noun, list_values, selection
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide

SEARCH_BUDGET_S = 2.0
"""Time limit of a search; most searches take some milliseconds."""
MAX_NODES_TRIED = 50
"""Maximum number of nodes on which the end of pods is tried: those that lack the least."""
MAX_PODS_NAMED = 3
MAX_CARDS_NAMED = 3

Kind = Literal[
    "memory",
    "cores",
    "count",
    "selection",
    "policy",
    "pods-end",
    "uncordon",
    "healthy",
    "quota",
    "unfinished",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """One change that would have been enough for the pod to fit."""

    kind: Kind
    text: str
    container: str = ""
    limit: int | None = None
    """Largest amount that would have fitted: MiB, percent, or number of cards."""
    unit: str = ""
    node: NodeName | None = None
    pods: tuple[str, ...] = ()
    """Pods that would have to end, as `namespace/name`."""
    cards: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHolding:
    """Part of one card that one pod held at the time of the decision."""

    pod: str
    """Pod as `namespace/name`."""
    node: NodeName
    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int
    details: tuple[Mapping[str, Any], ...] = ()
    """`DeviceShare.detail` of the pod's slices on the card that have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts about pods and nodes that a decision's record lacks."""

    holdings: Sequence[PodHolding] = ()
    unhealthy_since: Mapping[GpuUuid, datetime] = field(default_factory=dict)
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Names of resources by vendor, for `memory`, `percent`, `core` and `count`."""
    cordoned: frozenset[NodeName] = frozenset()
    """Nodes that are cordoned now, if the pod waits."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Priority by `namespace/name` of this pod and of present holders of cards."""


class SearchTimeout(Exception):
    """Error: the search used up its time."""


class Trials:
    """Ask the engine about changed pods and clusters, until the search's time is used up.

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


def counterfactuals(
    request: PodRequest,
    view: ClusterView,
    candidates: Sequence[NodeName],
    about: Circumstances,
    new_view: Callable[[], ClusterView],
    *,
    budget_s: float = SEARCH_BUDGET_S,
) -> Iterator[Counterfactual]:
    """Yield changes that would have let a refused pod fit on these candidates, cheapest first.

    If the search takes longer than `budget_s`, the last one is of the kind `unfinished`.
    """
    trials = Trials(budget_s)
    fits = partial(trials.fits, view=view, candidates=candidates)
    cluster = _ClusterSearch(request, view, about, new_view, trials)
    try:
        yield from _amounts(request, about, fits)
        yield from _selections(request, fits)
        yield from _policies(request, fits)
        nodes = cluster.nearest(candidates)
        yield from cluster.cards_back(nodes)
        yield from cluster.pod_ends(nodes)
    except SearchTimeout:
        text = f"not everything was tried: the search ended after {budget_s:g} s"
        yield Counterfactual(kind="unfinished", text=text)


def _amounts(
    request: PodRequest, about: Circumstances, fits: Callable[[PodRequest], bool]
) -> Iterator[Counterfactual]:
    """Lower each container's memory, cores or count, one at a time, to the largest that fits."""
    several = sum(len(container.requests) for container in request.containers) > 1
    for index, container in enumerate(request.containers):
        for number, wanted in enumerate(container.requests):
            fits_with = partial(_fits_with, fits, request, (index, number), wanted)
            for found in _amounts_of(wanted, fits_with, about.names.get(wanted.vendor, {})):
                text = f"{found.text} in container {container.name}" if several else found.text
                yield replace(found, container=container.name, text=text)


def _fits_with(
    fits: Callable[[PodRequest], bool],
    request: PodRequest,
    position: tuple[int, int],
    wanted: DeviceRequest,
    attribute: str,
    amount: int,
) -> bool:
    container, number = position
    containers = list(request.containers)
    requests = list(containers[container].requests)
    requests[number] = replace(wanted, **{attribute: amount})  # type: ignore[arg-type]  # an amount
    containers[container] = replace(containers[container], requests=tuple(requests))
    return fits(replace(request, containers=tuple(containers)))


def _amounts_of(
    wanted: DeviceRequest, fits_with: Callable[[str, int], bool], names: Mapping[str, str]
) -> Iterator[Counterfactual]:
    if wanted.memory_mib > 0:
        name, attribute, unit = names.get("memory", "memory"), "memory_mib", "MiB"
        top = wanted.memory_mib
    else:
        name, attribute = names.get("percent", "memory percentage"), "memory_percent"
        top, unit = wanted.memory_percent or 0, "percent"
    if (most := largest(partial(fits_with, attribute), 1, top - 1)) is not None:
        text = f"fits if {name} <= {most}" + (" MiB" if unit == "MiB" else "")
        yield Counterfactual(kind="memory", text=text, limit=most, unit=unit)
    top = min(wanted.core_percent, 100)
    if (most := largest(partial(fits_with, "core_percent"), 0, top - 1)) is not None:
        text = f"fits if {names.get('core', 'cores')} <= {most}"
        yield Counterfactual(kind="cores", text=text, limit=most, unit="percent")
    if (most := largest(partial(fits_with, "count"), 1, wanted.count - 1)) is not None:
        text = f"fits if {names.get('count', 'the number of cards')} <= {most}"
        yield Counterfactual(kind="count", text=text, limit=most, unit="cards")


def largest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the largest amount in low..high that fits; every smaller one fits too."""
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
    """Drop each restriction of the annotations separately, or all of them if only that helps."""

    def fits_with(vendor: str, chosen: Selection) -> bool:
        return fits(replace(request, selections={**request.selections, vendor: chosen}))

    for vendor, chosen in request.selections.items():
        restrictions = selection(chosen)
        found = False
        for name, phrase in restrictions:
            if fits_with(vendor, replace(chosen, **{name: getattr(Selection(), name)})):
                found = True
                yield Counterfactual(kind="selection", text=f"fits without {phrase}")
        freest = Selection(traits=chosen.traits)
        if not found and len(restrictions) > 1 and fits_with(vendor, freest):
            every = " and ".join(phrase for _, phrase in restrictions)
            yield Counterfactual(kind="selection", text=f"fits without {every}")


def _policies(request: PodRequest, fits: Callable[[PodRequest], bool]) -> Iterator[Counterfactual]:
    policy = request.policy
    if "mutex" in policy.gpu:
        gpu = tuple(key for key in policy.gpu if key != "mutex") or ("spread",)
        if fits(replace(request, policy=replace(policy, gpu=gpu))):
            yield Counterfactual(kind="policy", text="fits without card policy mutex")


@dataclass(frozen=True)
class _ClusterSearch:
    """Find changes of single nodes with which the pod would have fitted."""

    request: PodRequest
    view: ClusterView
    about: Circumstances
    new_view: Callable[[], ClusterView]
    trials: Trials

    def nearest(self, candidates: Sequence[NodeName]) -> list[NodeName]:
        """Return the candidates that lack the least."""
        refusal = decide(self.request, self.view, candidates=candidates).refusal
        if refusal is None:
            return []
        short = {
            node: sum(max(0, card.requested - card.available) for card in refusal.shortfalls[node])
            for node in refusal.shortfalls
        }
        return sorted(short, key=lambda node: (short[node], node))[:MAX_NODES_TRIED]

    def cards_back(self, nodes: Sequence[NodeName]) -> Iterator[Counterfactual]:
        """Try cordoned and unhealthy cards, one at a time, as if they were usable."""
        named = {"uncordon": 0, "healthy": 0}
        for node in nodes:
            for usage, _ in self.view.cards(node):
                device = usage.device
                kind: Literal["uncordon", "healthy"]
                if usage.cordoned and device.healthy:
                    kind, back = "uncordon", replace(usage, cordoned=False)
                elif not device.healthy and not usage.cordoned:
                    kind, back = "healthy", replace(usage, device=replace(device, healthy=True))
                else:
                    continue
                if named[kind] == MAX_CARDS_NAMED:
                    continue
                if self._fits_on(node, {device.uuid: back}):
                    named[kind] += 1
                    yield self._card_back(kind, node, usage)

    def _card_back(
        self, kind: Literal["uncordon", "healthy"], node: NodeName, usage: DeviceUsage
    ) -> Counterfactual:
        device = usage.device
        text = f"fits when card {device.index} ({device.uuid}) on {node} is "
        if kind == "uncordon":
            text += "uncordoned"
        else:
            since = self.about.unhealthy_since.get(device.uuid)
            text += f"healthy again ({device.health_reason or 'unhealthy'}"
            text += f" since {since.isoformat(timespec='seconds')})" if since else ")"
        return Counterfactual(kind=kind, text=text, node=node, cards=(device.uuid,))

    def pod_ends(self, nodes: Sequence[NodeName]) -> Iterator[Counterfactual]:
        """Find single pods whose end would suffice.

        If there are none, the fewest pods of one node.
        """
        own = self._own
        by_node: dict[NodeName, dict[str, list[PodHolding]]] = {}
        for one in self.about.holdings:
            if one.pod != own:
                by_node.setdefault(one.node, {}).setdefault(one.pod, []).append(one)
        named = 0
        fewest: tuple[NodeName, list[str]] | None = None
        for node in nodes:
            pods = by_node.get(node)
            if not pods or not self._fits_without(node, pods, list(pods)):
                continue
            # Lower priority first, then the smallest: a user would ask to stop these first.
            order = sorted(pods, key=lambda pod: (not self._is_lower(pod), _weight(pods[pod]), pod))
            for pod in order:
                if self._fits_without(node, pods, [pod]):
                    named += 1
                    yield self._end_of(node, pods, [pod])
                if named == MAX_PODS_NAMED:
                    return
            if not named:
                needed = self._fewest(node, pods, order)
                if fewest is None or len(needed) < len(fewest[1]):
                    fewest = (node, needed)
        if not named and fewest is not None:
            node, needed = fewest
            yield self._end_of(node, by_node[node], needed)

    @property
    def _own(self) -> str:
        return f"{self.request.namespace}/{self.request.name}"

    def _is_lower(self, pod: str) -> bool:
        """Whether the priority is below this pod's; an unknown one counts as lower."""
        known = self.about.priorities
        return pod not in known or self._own not in known or known[pod] < known[self._own]

    def _fewest(
        self, node: NodeName, pods: Mapping[str, Sequence[PodHolding]], order: Sequence[str]
    ) -> list[str]:
        """Return the fewest pods that must end; those of no lower priority are spared first."""
        needed = list(order)
        for pod in sorted(order, key=self._is_lower):
            rest = [other for other in needed if other != pod]
            if self._fits_without(node, pods, rest):
                needed = rest
        return needed

    def _fits_without(
        self, node: NodeName, pods: Mapping[str, Sequence[PodHolding]], ended: Sequence[str]
    ) -> bool:
        """Return whether the pod fits on the node after these pods have ended."""
        changes = {usage.device.uuid: usage for usage, _ in self.view.cards(node)}
        for pod in ended:
            for one in pods[pod]:
                if one.uuid in changes:
                    changes[one.uuid] = _release(changes[one.uuid], one)
        return self._fits_on(node, changes)

    def _fits_on(self, node: NodeName, changes: Mapping[GpuUuid, DeviceUsage]) -> bool:
        """Return whether the pod fits on this node with some of its cards changed."""
        alone = self.new_view()
        usages = [changes.get(usage.device.uuid, usage) for usage, _ in self.view.cards(node)]
        alone.set_node(node, [CardState(usage, 1) for usage in usages])
        return self.trials.fits(self.request, view=alone, candidates=[node])

    def _end_of(
        self, node: NodeName, pods: Mapping[str, Sequence[PodHolding]], ended: Sequence[str]
    ) -> Counterfactual:
        index = {usage.device.uuid: usage.device.index for usage, _ in self.view.cards(node)}
        uuids = tuple(sorted({one.uuid for pod in ended for one in pods[pod]}))
        if len(ended) == 1:
            held = [
                f"{one.memory_mib} MiB"
                + (f" and {one.core_percent} %" if one.core_percent else "")
                + f" of card {index.get(one.uuid, '?')}"
                for one in sorted(pods[ended[0]], key=lambda one: index.get(one.uuid, -1))
            ]
            priority = self.about.priorities.get(ended[0], 0)
            rank = f", priority {priority}" if priority else ""
            text = f"fits when pod {ended[0]} on {node} ends (it holds {list_values(held)}{rank})"
        else:
            text = (
                f"fits when {count_noun(len(ended), 'pod')} on {node} end: {list_values(ended, 5)} "
                f"(they hold {cards(len(uuids))})"
            )
        return Counterfactual(kind="pods-end", text=text, node=node, pods=tuple(ended), cards=uuids)


def _release(usage: DeviceUsage, held: PodHolding) -> DeviceUsage:
    """Return the card as it is when the pod's part is free again."""
    holdings = list(usage.holdings)
    for detail in held.details:
        if detail in holdings:
            holdings.remove(detail)
    return replace(
        usage,
        used_slots=max(0, usage.used_slots - held.slots),
        used_memory_mib=max(0, usage.used_memory_mib - held.memory_mib),
        used_core_percent=max(0, usage.used_core_percent - held.core_percent),
        holdings=tuple(holdings),
    )


def _weight(held: Sequence[PodHolding]) -> tuple[int, int]:
    return sum(one.memory_mib for one in held), sum(one.core_percent for one in held)
