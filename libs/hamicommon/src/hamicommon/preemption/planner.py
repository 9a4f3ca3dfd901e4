"""Plans of preemption: the pods whose end lets a pod fit, and the cards that it would get then.

In: the request, its priority, the cards, and every pod that holds some of them; out: a `Preview`
with the cheapest plan and the next best one, on another node. Pure but for the clock. The engine
is asked about every plan, so it holds for every vendor and every rule; no victim of a plan
can be left out. The order of plans is kube-scheduler's: victims of low priority, then few of them.

The search changes the counters of the view that it is given and puts them back, so nobody else may
read the view until it returns.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter

from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.counterfactuals import PodHolding
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import Decision, decide

SEARCH_BUDGET_S = 2.0
MAX_NODES_SEARCHED = 20
"""Nodes on which victims are chosen: those where it may cost the least."""
OF_NO_LOWER_PRIORITY = "of its priority or a higher one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod that holds cards, with what decides whether it may end."""

    uid: PodUid
    pod: str
    """`namespace/name`."""
    node: NodeName
    priority: int
    held: tuple[PodHolding, ...]
    """Footprint of the pod on each of its cards."""
    started_at: datetime | None = None
    owner: str = ""
    """Such as `Job train-3`; empty: nothing would make it again."""
    budgets: tuple[str, ...] = ()
    """Names of the PodDisruptionBudgets that it counts for, `namespace/name`."""
    shield: str = ""
    """Which pods like it may not end, after "pods " (`of DaemonSets`); empty: it may."""
    is_ending: bool = False
    """Whether the pod is being deleted: its cards come back without a plan."""
    allocation_id: AllocationId | None = None
    """Grant that it holds; None: unknown."""
    is_room: bool = False
    """Whether it only waits for cards that are held for it: no program ends with it."""

    @property
    def memory_mib(self) -> int:
        """Memory that it holds on all cards."""
        return sum([each.memory_mib for each in self.held])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Pods to end on one node, none of them in vain, and the placement that they make room for."""

    placement: Placement
    victims: tuple[Holder, ...]
    """The most important first; empty: the pods in `ending` suffice."""
    ending: tuple[Holder, ...] = ()
    """Pods of the node that end anyway; the plan counts on them."""
    cost: tuple[float, ...] = ()
    """Highest priority, sum of priorities, number of pods, work lost in MiB seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The answer: the best plan and the next best, and what was not considered."""

    fits_now: bool = False
    """No pod has to end."""
    plans: tuple[Plan, ...] = ()
    """At most two, the best first."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Pods that were not considered, by reason."""
    nodes_searched: int = 0
    nodes_possible: int = 0
    """Nodes on which the end of pods would suffice."""
    is_complete: bool = True
    """False: the time budget was spent before all nodes were searched."""
    problem: str = ""
    """Why there is no plan."""


Order = Callable[[Holder], tuple[float, ...]]
"""Key by which pods are put back."""


_NO_COST = (float("-inf"), float("-inf"), 0.0, 0.0)


_ANY_COST = (float("inf"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lack:
    """Free amounts that a card lacks for the smallest part of the request."""

    uuid: GpuUuid
    memory_mib: int
    slots: int

    def is_met_by(self, victims: Iterable[Holder]) -> bool:
        """Whether the end of these frees enough; the engine has further rules."""
        held = [each for one in victims for each in one.held if each.uuid == self.uuid]
        return (
            sum(each.memory_mib for each in held) >= self.memory_mib
            and sum(each.slots for each in held) >= self.slots
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Pods to choose victims from."""

    cost: tuple[float, ...]
    """The least that it may cost, as `Plan.cost`."""
    holders: Sequence[Holder]
    lack: _Lack | None = None
    """Amounts that the one card lacks that they are on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    """A node where the end of pods may be enough."""

    node: NodeName
    starts: Sequence[_Start]
    """The cheapest first, if they are of one card each."""

    @property
    def cost(self) -> tuple[float, ...]:
        """The least that it may cost."""
        return self.starts[0].cost


class SearchTimeout(Exception):
    """The time budget of a search is spent."""


def preview(
    request: PodRequest,
    priority: int,
    view: ClusterView,
    holders: Collection[Holder],
    *,
    now: datetime,
    budgets: Mapping[str, int] | None = None,
    candidates: Collection[NodeName] | None = None,
    budget_s: float = SEARCH_BUDGET_S,
    clock: Callable[[], float] = time.monotonic,
) -> Preview:
    """Search the plan that costs least for a pod that does not fit.

    Args:
        request: the pod's.
        priority: the pod's; holders of this one or a higher one never end for it.
        view: the cards; changed while the search runs, and put back.
        holders: every pod that holds cards of the view.
        now: for the work that would be lost.
        budgets: PodDisruptionBudget -> evictions that it allows now; an absent one allows none.
        candidates: nodes to consider; None: all.
        budget_s: after so many seconds the best plan that was found is the answer.
        clock: for the budget.

    Raises: InvalidRequest when the pod asks for no card.
    """
    nodes = frozenset(view.nodes if candidates is None else candidates)
    left_out: Counter[str] = Counter()
    by_node: defaultdict[NodeName, list[Holder]] = defaultdict(list)
    ending: defaultdict[NodeName, list[Holder]] = defaultdict(list)
    own: list[Holder] = []
    for holder in holders:
        if holder.uid == request.uid:
            own.append(holder)
        elif holder.node not in nodes:
            continue
        elif holder.is_ending:
            ending[holder.node].append(holder)
        elif reason := _reason_to_leave_out(holder, priority, budgets or {}):
            left_out[reason] += 1
        else:
            by_node[holder.node].append(holder)
    search = _Search(
        request=request,
        view=view,
        by_node=by_node,
        ending=ending,
        budgets=budgets or {},
        now=now,
        clock=clock,
        ends_at=clock() + budget_s,
    )
    with search.without(own):
        # Its own room is no obstacle.
        if decide(request, view, candidates=candidates).placement is not None:
            return Preview(fits_now=True)
        with search.without(each for some in ending.values() for each in some):
            return search.answer(candidates, left_out)


def _reason_to_leave_out(holder: Holder, priority: int, budgets: Mapping[str, int]) -> str:
    if holder.priority >= priority:
        return OF_NO_LOWER_PRIORITY
    if holder.shield:
        return holder.shield
    for name in holder.budgets:
        if budgets.get(name, 0) < 1:
            return f"of which PodDisruptionBudget {name} allows no eviction"
    return ""


@dataclass(frozen=True, kw_only=True)
class _Search:
    request: PodRequest
    view: ClusterView
    by_node: Mapping[NodeName, Sequence[Holder]]
    """Pods that may end."""
    ending: Mapping[NodeName, Sequence[Holder]]
    budgets: Mapping[str, int]
    now: datetime
    clock: Callable[[], float]
    ends_at: float

    @contextmanager
    def without(self, holders: Iterable[Holder]) -> Iterator[None]:
        """Take these pods' slices off the cards, for a while."""
        gone = list(holders)
        for holder in gone:
            self._count(holder, -1)
        try:
            yield
        finally:
            for holder in gone:
                self._count(holder, 1)

    def _count(self, holder: Holder, sign: int) -> None:
        for each in holder.held:
            self.view.shift(
                each.uuid,
                slots=sign * each.slots,
                memory_mib=sign * each.memory_mib,
                core_percent=sign * each.core_percent,
                added=each.details if sign > 0 else (),
                dropped=each.details if sign < 0 else (),
            )

    def answer(
        self, candidates: Collection[NodeName] | None, left_out: Mapping[str, int]
    ) -> Preview:
        """Choose victims node by node, first where the least may be enough."""
        first = self._decide(candidates)
        if first.placement is not None:
            plan = self._plan(first.placement.node, ())
            return Preview(plans=(plan,), left_out=left_out)
        spots = sorted(self._spots(), key=lambda spot: (spot.cost, spot.node))
        plans: list[Plan] = []
        searched, is_possible, is_complete = 0, False, True
        for spot in spots:
            if len(plans) > 1 and spot.cost >= plans[1].cost:
                break  # nor is any of the others better
            is_complete = searched < MAX_NODES_SEARCHED
            try:
                if not is_complete or not self._fits_without(spot.node, self.by_node[spot.node]):
                    continue
                is_possible = True
                searched += 1
                plan_here = self._cheapest(spot)
            except SearchTimeout:
                is_complete = False
                break
            if plan_here is not None:
                plans.append(plan_here)
                plans.sort(key=lambda plan: (plan.cost, plan.placement.node))
        return Preview(
            plans=tuple(plans[:2]),
            left_out=left_out,
            nodes_searched=searched,
            nodes_possible=len(spots),
            is_complete=is_complete,
            problem="" if plans else self._problem(is_possible, is_complete),
        )

    def _problem(self, is_possible: bool, is_complete: bool) -> str:
        pods = sum(len(some) for some in self.by_node.values())
        if pods == 0:
            return "no pod that holds cards may end for it"
        if not is_complete:
            return "the search took too long and found no plan"
        if is_possible:
            return "PodDisruptionBudgets allow too few evictions on every node"
        some = "the only pod" if pods == 1 else f"all {pods} pods"
        return f"it would not fit even if {some} that may end for it were gone"

    def _decide(self, candidates: Collection[NodeName] | None) -> Decision:
        return decide(self.request, self.view, candidates=candidates)

    def _spots(self) -> Iterator[_Spot]:
        """Find by arithmetic where the end of pods may be enough, and what it costs at least."""
        requests = [each for container in self.request.containers for each in container.requests]
        cards = max(each.count for each in requests)
        for node, holders in self.by_node.items():
            on_card: defaultdict[GpuUuid, list[tuple[Holder, PodHolding]]] = defaultdict(list)
            for holder in sorted(holders, key=attrgetter("priority")):
                for each in holder.held:
                    on_card[each.uuid].append((holder, each))
            found: list[tuple[tuple[float, ...], _Lack]] = []
            for state in self.view.cards(node):
                usage = state.usage
                mine = [each for each in requests if each.vendor == usage.device.vendor]
                if not mine:
                    continue
                lack = _Lack(
                    uuid=usage.device.uuid,
                    memory_mib=min(each.memory_mib_on(usage.device.memory_mib) for each in mine)
                    - usage.free_memory_mib,
                    slots=1 - (usage.device.slots - usage.used_slots),
                )
                cost = self._least(lack, on_card.get(usage.device.uuid, ()))
                if cost is not None:
                    found.append((cost, lack))
            found.sort(key=lambda each: (each[0], each[1].uuid))
            if len(found) < cards:
                continue
            if cards == len(requests) == 1:
                starts = [
                    _Start(cost=cost, holders=[one for one, _ in on_card[lack.uuid]], lack=lack)
                    for cost, lack in found
                ]
            else:
                starts = self._on_several(holders, found[:cards])
            yield _Spot(node=node, starts=starts)

    def _on_several(
        self, holders: Sequence[Holder], cheapest: Sequence[tuple[tuple[float, ...], _Lack]]
    ) -> list[_Start]:
        """Start with the pods on the cards that cost the least, then with all of the node."""
        uuids = {lack.uuid for _, lack in cheapest}
        mine = [one for one in holders if any(each.uuid in uuids for each in one.held)]
        level = max(cost[0] for cost, _ in cheapest)
        if any(len(one.held) > 1 for one in holders):
            least = (level, *_NO_COST[1:])
            return [_Start(cost=least, holders=mine), _Start(cost=least, holders=holders)]
        sums = (sum(max(0.0, cost[part]) for cost, _ in cheapest) for part in (2, 3))
        first = _Start(cost=(level, float("-inf"), *sums), holders=mine)
        return [first, _Start(cost=_ANY_COST, holders=holders)]

    def _least(
        self, lack: _Lack, on_card: Sequence[tuple[Holder, PodHolding]]
    ) -> tuple[float, ...] | None:
        """Return the least that it costs to free what a card lacks; None: it can't be freed.

        `on_card`: its holders, those of a low priority first.
        """
        lack_mib, lack_slots = lack.memory_mib, lack.slots
        if lack_mib <= 0 and lack_slots <= 0:
            # By another rule it lacks something.
            return _NO_COST
        memory_mib = slots = 0
        for holder, held in on_card:
            memory_mib, slots = memory_mib + held.memory_mib, slots + held.slots
            if memory_mib >= lack_mib and slots >= lack_slots:
                level = holder.priority
                break
        else:
            return None
        upto = [pair for pair in on_card if pair[0].priority <= level]
        alone = [
            self._lost(one)
            for one, each in upto
            if each.memory_mib >= lack_mib and each.slots >= lack_slots
        ]
        # One at least has that priority: those below it are not enough.
        if alone:
            return float(level), float(level), 1.0, min(alone)
        largest, pods = 0, 0
        for each in sorted((each.memory_mib for _, each in upto), reverse=True):
            largest, pods = largest + each, pods + 1
            if largest >= lack.memory_mib and pods >= lack.slots:
                break
        total = level + sum(one.priority for one, _ in upto[: pods - 1])
        lost = sum(sorted(self._lost(one) for one, _ in upto)[:pods])
        return float(level), float(total), float(pods), lost

    def _cheapest(self, spot: _Spot) -> Plan | None:
        """Search the node's cheapest plan. Raises: SearchTimeout."""
        best: Plan | None = None
        for start in spot.starts:
            if best is not None and start.cost >= best.cost:
                break
            level = self._lowest_level(spot.node, start)
            if level is None:
                continue
            holders = [one for one in start.holders if one.priority <= level]
            for order in (_small_first, _large_first):
                victims = self._spare(spot.node, replace(start, holders=holders), order)
                if victims is None:
                    continue
                plan = self._plan(spot.node, victims)
                if best is None or plan.cost < best.cost:
                    best = plan
        return best

    def _lowest_level(self, node: NodeName, start: _Start) -> int | None:
        """Find the lowest priority up to which these must end for the node to take the pod."""
        levels = sorted({one.priority for one in start.holders})
        low, high, found = 0, len(levels) - 1, None
        while low <= high:
            # The highest first: if it does not help, nothing does.
            middle = high if found is None else (low + high) // 2
            upto = [one for one in start.holders if one.priority <= levels[middle]]
            if self._fits_without(node, upto, start.lack):
                found, high = levels[middle], middle - 1
            elif found is None:
                return None
            else:
                low = middle + 1
        return found

    def _spare(
        self,
        node: NodeName,
        start: _Start,
        order: Order,
    ) -> list[Holder] | None:
        """Put pods back, the most important first, for as long as the pod fits without the others.

        None: it does not fit without all of these, or a PodDisruptionBudget forbids what is left.
        """
        victims = list(start.holders)
        if not self._fits_without(node, victims, start.lack):
            return None
        spent = Counter(name for one in victims for name in one.budgets)
        for holder in sorted(start.holders, key=order):
            rest = [one for one in victims if one is not holder]
            if self._fits_without(node, rest, start.lack):
                victims = rest
                spent.subtract(holder.budgets)
        if any(number > self.budgets.get(name, 0) for name, number in spent.items()):
            return None
        return victims

    def _fits_without(
        self, node: NodeName, victims: Sequence[Holder], lack: _Lack | None = None
    ) -> bool:
        if self.clock() > self.ends_at:
            raise SearchTimeout
        if lack is not None and not lack.is_met_by(victims):
            return False
        with self.without(victims):
            return self._decide([node]).placement is not None

    def _plan(self, node: NodeName, victims: Sequence[Holder]) -> Plan:
        with self.without(victims):
            placement = self._decide([node]).placement
        assert placement is not None
        cards = {each.uuid for each in placement.footprints()}
        lost = sum(map(self._lost, victims))
        cost = (
            max((one.priority for one in victims), default=0),
            sum(one.priority for one in victims),
            len(victims),
            lost,
        )
        order = sorted(victims, key=lambda one: (-one.priority, -self._ran_s(one), one.pod))
        return Plan(
            placement=placement,
            victims=tuple(order),
            ending=tuple(
                one
                for one in self.ending.get(node, ())
                if any(each.uuid in cards for each in one.held)
            ),
            cost=tuple(map(float, cost)),
        )

    def _lost(self, holder: Holder) -> float:
        """Work that ends with the pod, in MiB seconds."""
        return holder.memory_mib * self._ran_s(holder)

    def _ran_s(self, holder: Holder) -> float:
        if holder.started_at is None:
            return 0.0
        return max(0.0, (self.now - holder.started_at).total_seconds())


def _small_first(holder: Holder) -> tuple[float, ...]:
    return -holder.priority, holder.memory_mib, _age(holder)


def _large_first(holder: Holder) -> tuple[float, ...]:
    return -holder.priority, -holder.memory_mib, _age(holder)


def _age(holder: Holder) -> float:
    """Order the pods that started first before others, as the more important ones."""
    return holder.started_at.timestamp() if holder.started_at is not None else float("inf")
