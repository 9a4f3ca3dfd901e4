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
from dataclasses import dataclass, field
from datetime import datetime

from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.counterfactuals import PodHolding
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import Decision, decide

SEARCH_BUDGET_S = 2.0
MAX_NODES_SEARCHED = 50
"""Nodes on which victims are chosen: those where the pod lacks the least."""
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
        return sum(each.memory_mib for each in self.held)


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
    if decide(request, view, candidates=candidates).placement is not None:
        return Preview(fits_now=True)
    nodes = frozenset(view.nodes if candidates is None else candidates)
    left_out: Counter[str] = Counter()
    by_node: defaultdict[NodeName, list[Holder]] = defaultdict(list)
    ending: defaultdict[NodeName, list[Holder]] = defaultdict(list)
    for holder in holders:
        if holder.node not in nodes or holder.uid == request.uid:
            continue
        reason = _reason_to_leave_out(holder, priority, budgets or {})
        if holder.is_ending:
            ending[holder.node].append(holder)
        elif reason:
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
    with search.without(each for some in ending.values() for each in some):
        return search.answer(candidates, left_out)


def _reason_to_leave_out(holder: Holder, priority: int, budgets: Mapping[str, int]) -> str:
    if holder.priority >= priority:
        return OF_NO_LOWER_PRIORITY
    if holder.shield:
        return holder.shield
    shut = [name for name in holder.budgets if budgets.get(name, 0) < 1]
    return f"of which PodDisruptionBudget {shut[0]} allows no eviction" if shut else ""


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
        """Choose victims node by node, on the nodes where those of the lowest priority suffice."""
        first = self._decide(candidates)
        if first.placement is not None:
            plan = self._plan(first.placement.node, ())
            return Preview(plans=(plan,), left_out=left_out)
        level = self._lowest_level(candidates)
        if level is None:
            pods = sum(len(some) for some in self.by_node.values())
            problem = (
                "no pod that holds cards may end for it"
                if pods == 0
                else f"it would not fit if all {pods} pods ended that may end for it"
            )
            return Preview(left_out=left_out, problem=problem)
        with self.without(self._upto(level)):
            possible = list(self._decide(candidates).scores)
        plans, searched, is_complete = [], 0, True
        for node in self._nearest(first, possible):
            try:
                plan_here = self._cheapest(node, level)
            except SearchTimeout:
                is_complete = False
                break
            searched += 1
            if plan_here is not None:
                plans.append(plan_here)
        plans.sort(key=lambda plan: (plan.cost, plan.placement.node))
        problem = "" if plans else "PodDisruptionBudgets allow too few evictions on every node"
        if not plans and not is_complete:
            problem = "the search took too long and found no plan"
        return Preview(
            plans=tuple(plans[:2]),
            left_out=left_out,
            nodes_searched=searched,
            nodes_possible=len(possible),
            is_complete=is_complete and searched == len(possible),
            problem=problem,
        )

    def _decide(self, candidates: Collection[NodeName] | None) -> Decision:
        return decide(self.request, self.view, candidates=candidates)

    def _upto(self, level: int) -> list[Holder]:
        return [one for some in self.by_node.values() for one in some if one.priority <= level]

    def _lowest_level(self, candidates: Collection[NodeName] | None) -> int | None:
        """Find the lowest priority up to which pods must end for some node to take the pod."""
        levels = sorted({one.priority for some in self.by_node.values() for one in some})
        low, high, found = 0, len(levels) - 1, None
        while low <= high:
            # The highest first: if it does not help, nothing does.
            middle = high if found is None else (low + high) // 2
            with self.without(self._upto(levels[middle])):
                fits = self._decide(candidates).placement is not None
            if fits:
                found, high = levels[middle], middle - 1
            elif found is None:
                return None
            else:
                low = middle + 1
        return found

    def _nearest(self, first: Decision, possible: Sequence[NodeName]) -> list[NodeName]:
        """Return the nodes that lack the least for the pod as they are."""
        assert first.refusal is not None
        shortfalls = first.refusal.shortfalls

        def lacking(node: NodeName) -> tuple[int, NodeName]:
            short = [max(0, one.requested - one.available) for one in shortfalls.get(node, ())]
            return min(short, default=0), node

        return sorted(possible, key=lacking)[:MAX_NODES_SEARCHED]

    def _cheapest(self, node: NodeName, level: int) -> Plan | None:
        """Search the node's cheapest plan. Raises: SearchTimeout."""
        holders = [one for one in self.by_node[node] if one.priority <= level]
        by_card: defaultdict[GpuUuid, list[Holder]] = defaultdict(list)
        for holder in holders:
            for each in holder.held:
                by_card[each.uuid].append(holder)
        starts = [*by_card.values(), holders] if len(by_card) > 1 else [holders]
        plans = []
        for start in starts:
            for victims in (
                self._spare(node, start, order) for order in (_small_first, _large_first)
            ):
                if victims is not None:
                    plans.append(self._plan(node, victims))
        return min(plans, key=lambda plan: plan.cost, default=None)

    def _spare(
        self,
        node: NodeName,
        holders: Sequence[Holder],
        order: Callable[[Holder], tuple[float, ...]],
    ) -> list[Holder] | None:
        """Put pods back, the most important first, for as long as the pod fits without the others.

        None: it does not fit without all of these, or a PodDisruptionBudget forbids what is left.
        """
        victims = list(holders)
        if not self._fits_without(node, victims):
            return None
        spent = Counter(name for one in victims for name in one.budgets)
        for holder in sorted(holders, key=order):
            rest = [one for one in victims if one is not holder]
            if self._fits_without(node, rest):
                victims = rest
                spent.subtract(holder.budgets)
        if any(number > self.budgets.get(name, 0) for name, number in spent.items()):
            return None
        return victims

    def _fits_without(self, node: NodeName, victims: Sequence[Holder]) -> bool:
        if self.clock() > self.ends_at:
            raise SearchTimeout
        with self.without(victims):
            return self._decide([node]).placement is not None

    def _plan(self, node: NodeName, victims: Sequence[Holder]) -> Plan:
        with self.without(victims):
            placement = self._decide([node]).placement
        assert placement is not None
        lost = sum(one.memory_mib * self._ran_s(one) for one in victims)
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
            ending=tuple(self.ending.get(node, ())),
            cost=tuple(map(float, cost)),
        )

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
