"""Plans of preemption: the pods to evict so that a pod fits, and the cards that it gets then.

Input: the request, its priority, and the holders of slices. The result is a `Preview` with the
cheapest plan and the next best one, on another node. Pure except for the clock. The engine checks
every plan, so plans hold for every vendor and every rule; no victim of a plan can be left out.
Plans are ordered as by kube-scheduler: by low priority of the victims, then by their number.

The search changes the counters of the given view and restores them, so no other code may read the
view until it returns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.engine import best_of
from hamicommon.preemption.holdings import LOWEST_PRIORITY, Costs, Holder, Holdings

SEARCH_BUDGET_S = 2.0
MAX_NODES_SEARCHED = 20
"""Maximum nodes on which victims are searched: those with the lowest possible cost."""
MAX_CHOICES = 32
"""Maximum sets of victims tried on a node, before a search that keeps pods one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Pods to evict on one node, all of them necessary, and the placement that they free."""

    placement: Placement
    victims: tuple[Holder, ...]
    """Pods to evict, the most important first; empty if the pods in `ending` suffice."""
    ending: tuple[Holder, ...] = ()
    """Pods of the node that are being deleted anyway; the plan counts on their cards."""
    cost: tuple[float, ...] = ()
    """Cost: highest priority, sum of priorities, number of pods, work lost in MiB seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Result of a search: the best plan, the next best, and the pods not considered."""

    fits_now: bool = False
    """Whether the pod fits without preemption."""
    plans: tuple[Plan, ...] = ()
    """Plans, at most two, the best first."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of pods that were not considered, by reason."""
    nodes_searched: int = 0
    nodes_possible: int = 0
    """Number of nodes on which preemption would suffice."""
    is_complete: bool = True
    """Whether all nodes were searched before the time budget was spent."""
    problem: str = ""
    """Reason why no plan exists."""


Order = Callable[[Holder], tuple[float, ...]]
"""Key by which pods are sorted before as many as possible are kept."""


class SearchTimeout(Exception):
    """Time budget of a search is spent."""


def preview(
    request: PodRequest,
    priority: int,
    holdings: Holdings,
    *,
    candidates: Collection[NodeName] | None = None,
    budget_s: float = SEARCH_BUDGET_S,
    clock: Callable[[], float] = time.monotonic,
) -> Preview:
    """Search the plan that costs least for a pod that does not fit.

    Args:
        request: request of the pod.
        priority: the pod's; pods of this or a higher priority are never preempted.
        holdings: slices of all pods; the search changes its view and restores it.
        candidates: nodes to consider; None: all.
        budget_s: after this many seconds the best plan found so far is returned.
        clock: for the budget.

    Raises: InvalidRequest if the pod asks for no card.
    """
    rows, _ = holdings.view.rows_of(candidates)
    own = holdings.of_uid.get(request.uid, [])
    is_ending = holdings.is_ending & np.isin(holdings.rows, rows)
    is_ending[own] = False
    ending = [holdings.holders[each] for each in np.flatnonzero(is_ending).tolist()]
    search = _Search(
        request=request,
        holdings=holdings,
        ending=ending,
        clock=clock,
        ends_at=clock() + budget_s,
    )
    with search.without(holdings.holders[each] for each in own):
        # The pod's own room is no obstacle.
        if best_of(request, holdings.view, rows) is not None:
            return Preview(fits_now=True)
        with search.without(ending):
            return search.answer(priority, rows)


@dataclass(frozen=True, kw_only=True)
class _Search:
    request: PodRequest
    holdings: Holdings
    ending: Sequence[Holder]
    """Pods of each node that are being deleted anyway."""
    clock: Callable[[], float]
    ends_at: float

    @contextmanager
    def without(self, holders: Iterable[Holder]) -> Iterator[None]:
        """Remove these pods' slices from the cards inside a block."""
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
            self.holdings.view.shift(
                each.uuid,
                slots=sign * each.slots,
                memory_mib=sign * each.memory_mib,
                core_percent=sign * each.core_percent,
                added=each.details if sign > 0 else (),
                dropped=each.details if sign < 0 else (),
            )

    def answer(self, priority: int, rows: Int) -> Preview:
        """Choose victims node by node, beginning with the lowest possible cost."""
        may_end, left_out = self.holdings.find_victims(self.request, priority, rows)
        placement = best_of(self.request, self.holdings.view, rows)
        if placement is not None:
            return Preview(plans=(self._plan(placement, ()),), left_out=left_out)
        costs = Costs(self.holdings, self.request, may_end, rows)
        spots = costs.spots()
        plans: list[Plan] = []
        searched, is_complete = 0, True
        for least, row in spots:
            if len(plans) > 1 and least >= plans[1].cost:
                break  # the others are no better
            is_complete = searched < MAX_NODES_SEARCHED
            if not is_complete:
                break
            try:
                plan_here = self._cheapest(row, costs)
                if plan_here is None and not self._fits_without(row, costs.on(row)):
                    continue
            except SearchTimeout:
                is_complete = False
                break
            searched += 1
            if plan_here is not None:
                plans.append(plan_here)
                plans.sort(key=lambda plan: (plan.cost, plan.placement.node))
        return Preview(
            plans=tuple(plans[:2]),
            left_out=left_out,
            nodes_searched=searched,
            nodes_possible=len(spots),
            is_complete=is_complete,
            problem="" if plans else _problem(int(may_end.sum()), searched > 0, is_complete),
        )

    def _cheapest(self, row: int, costs: Costs) -> Plan | None:
        """Search the node's cheapest plan. Raises: SearchTimeout."""
        everybody = costs.on(row)
        for number, victims in enumerate(costs.choices(row)[:MAX_CHOICES]):
            plan = self._plan_without(row, victims)
            if plan is not None:
                return plan
            if number == 0 and not self._fits_without(row, everybody):
                return None
        # A rule other than amounts decides, or a PodDisruptionBudget does.
        return self._plan_without(row, sorted(everybody, key=_importance))

    def _plan_without(self, row: int, holders: Sequence[Holder]) -> Plan | None:
        """Keep the pods in this order, as long as the pending pod fits, and preempt the others.

        None: it does not fit without all of these, or a PodDisruptionBudget forbids evicting the
        rest.
        """
        if not self._fits_without(row, holders):
            return None
        victims = list(holders)
        for holder in holders if len(holders) > 1 else ():
            rest = [one for one in victims if one is not holder]
            if self._fits_without(row, rest):
                victims = rest
        spent = Counter(name for one in victims for name in one.budgets)
        allowed = self.holdings.budgets
        if any(number > allowed.get(name, 0) for name, number in spent.items()):
            return None
        with self.without(victims):
            placement = self._placement(row)
        assert placement is not None
        return self._plan(placement, victims)

    def _fits_without(self, row: int, victims: Iterable[Holder]) -> bool:
        if self.clock() > self.ends_at:
            raise SearchTimeout
        with self.without(victims):
            return self._placement(row) is not None

    def _placement(self, row: int) -> Placement | None:
        return best_of(self.request, self.holdings.view, np.array([row]))

    def _plan(self, placement: Placement, victims: Sequence[Holder]) -> Plan:
        cards = {each.uuid for each in placement.footprints()}
        now = self.holdings.now
        cost = (
            max((one.priority for one in victims), default=0),
            sum(one.priority - LOWEST_PRIORITY for one in victims),
            len(victims),
            sum(one.lost_work(now) for one in victims),
        )
        order = sorted(victims, key=lambda one: (-one.priority, -one.ran_s(now), one.pod))
        return Plan(
            placement=placement,
            victims=tuple(order),
            ending=tuple(
                one
                for one in self.ending
                if one.node == placement.node and any(each.uuid in cards for each in one.held)
            ),
            cost=tuple(map(float, cost)),
        )


def _problem(pods: int, is_possible: bool, is_complete: bool) -> str:
    if pods == 0:
        return "no pod that holds cards may be preempted for it"
    if not is_complete:
        return "the search took too long and found no plan"
    if is_possible:
        return "PodDisruptionBudgets allow too few evictions on every node"
    some = "the only pod" if pods == 1 else f"all {pods} pods"
    return f"the pod would not fit even if {some} that may be preempted were gone"


def _importance(holder: Holder) -> tuple[float, ...]:
    """Return a sort key by which the most important pods are kept first."""
    started_at = holder.started_at
    age = started_at.timestamp() if started_at is not None else float("inf")
    return -holder.priority, holder.memory_mib, age
