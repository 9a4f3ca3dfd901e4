"""Pods' slices as arrays: nodes where preemption may free enough, and a lower bound of its cost.

The arrays are built once per reading of the ledger; each pending pod then takes a few passes over
them. Only amounts are compared (MiB, percent of cores, slots), card by card, so a cost is never too
high. The engine decides whether the pod fits (`planner.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import combinations, islice, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.counterfactuals import PodHolding
from hamicommon.placement.cluster.cards import Bools, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.filter import ask_of

Amounts = npt.NDArray[np.float64]

OF_NO_LOWER_PRIORITY = "of its priority or a higher one"
LOWEST_PRIORITY = -(2.0**31)
"""Lowest priority of a pod; sums of priorities count from here, as in kube-scheduler.

One pod more therefore costs more than a pod of a higher priority, up to the highest.
"""
NO_COST = (float("-inf"), 0.0, 0.0, 0.0)
MAX_TRIED = 12
"""Maximum pods of a card of which every subset is tried; of more, the small ones are kept first."""
MAX_SETS = 256
"""Maximum combinations of cards of one node that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Pod that holds cards, with the facts that decide whether it may be preempted."""

    uid: PodUid
    pod: str
    """Pod as `namespace/name`."""
    node: NodeName
    priority: int
    held: tuple[PodHolding, ...]
    """Slices of the pod, summed on each of its cards."""
    started_at: datetime | None = None
    owner: str = ""
    """Owner such as `Job train-3`; empty if no controller would create the pod again."""
    budgets: tuple[str, ...] = ()
    """PodDisruptionBudgets that select the pod, as `namespace/name`."""
    shield: str = ""
    """Group of pods that must not be preempted, after "pods " (`of DaemonSets`).

    Empty if it may be.
    """
    is_ending: bool = False
    """Whether the pod is being deleted, so that its cards become free without a plan."""
    allocation_id: AllocationId | None = None
    """Allocation that the pod holds; None if unknown."""
    is_room: bool = False
    """Whether the pod has only a room (cards reserved by preemption): no program is stopped."""

    @property
    def memory_mib(self) -> int:
        """Memory that the pod holds on all its cards."""
        return sum([each.memory_mib for each in self.held])

    def ran_s(self, now: datetime) -> float:
        """Return how long the pod has run; 0 if unknown."""
        if self.started_at is None:
            return 0.0
        return max(0.0, (now - self.started_at).total_seconds())

    def lost_work(self, now: datetime) -> float:
        """Return the work lost when the pod is preempted, in MiB seconds."""
        return self.memory_mib * self.ran_s(now)


class Holdings:
    """Slices of all pods that hold cards of the view, as arrays.

    Args:
        holders: every pod that holds cards.
        view: the cards; no node comes or goes while this is in use.
        now: for the work that would be lost.
        budgets: PodDisruptionBudget -> evictions that it allows now; an absent one allows none.
    """

    def __init__(
        self,
        holders: Iterable[Holder],
        view: ClusterView,
        *,
        now: datetime,
        budgets: Mapping[str, int] | None = None,
    ) -> None:
        self.view, self.now, self.budgets = view, now, budgets or {}
        self.holders = list(holders)
        self.of_uid = defaultdict[PodUid, list[int]](list)
        self.places = view.shape[1]
        numbers = {"": 0}
        rows, shields, found = [], [], []
        for pod, one in enumerate(self.holders):
            self.of_uid[one.uid].append(pod)
            rows.append(view.row_of(one.node))
            shields.append(numbers.setdefault(self._shield(one), len(numbers)))
            for each in one.held:
                where = view.place_of(each.uuid)
                if where is not None:
                    card = where[0] * self.places + where[1]
                    found.append((pod, card, each.memory_mib, each.core_percent, each.slots))
        self.rows, self.shields = np.array(rows, np.int64), np.array(shields, np.int64)
        self.reasons = list(numbers)
        """Reasons why pods must not be preempted, indexed by `shields`; 0: they may be."""
        self.priorities = np.array([one.priority for one in self.holders], np.float64)
        self.is_ending = np.array([one.is_ending for one in self.holders], np.bool_)
        table = np.array(found, np.float64).reshape(len(found), 5)
        self.pod, card_of = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        self.card, self.amounts = card_of, table[:, 2:]
        weights = (self.priorities - LOWEST_PRIORITY)[self.pod]
        lost = np.array([one.lost_work(now) for one in self.holders], np.float64)[self.pod]
        self.costs = np.column_stack([weights, np.ones(len(weights)), lost])
        """Costs of each slice, in the units of `Plan.cost`: priority, pods, work lost."""
        self.by_weight, self.by_loss = _Order.of(card_of, weights), _Order.of(card_of, lost)
        self.by_amount = [_Order.of(card_of, -amounts) for amounts in self.amounts.T]

    def _shield(self, one: Holder) -> str:
        if one.shield:
            return one.shield
        for name in one.budgets:
            if self.budgets.get(name, 0) < 1:
                return f"of which PodDisruptionBudget {name} allows no eviction"
        return ""

    def find_victims(
        self, request: PodRequest, priority: int, rows: Int
    ) -> tuple[Bools, dict[str, int]]:
        """Return which pods may be preempted for the request, and how many may not, by reason."""
        others = np.isin(self.rows, rows) & ~self.is_ending
        others[self.of_uid.get(request.uid, [])] = False
        lower = others & (self.priorities < priority)
        numbers = np.bincount(self.shields[lower], minlength=len(self.reasons)).tolist()
        left_out = dict(zip(self.reasons[1:], numbers[1:], strict=True))
        left_out[OF_NO_LOWER_PRIORITY] = int(others.sum() - lower.sum())
        return lower & (self.shields == 0), {why: n for why, n in left_out.items() if n}


class _Order(NamedTuple):
    """Slices grouped by card, and sorted by a key within each card."""

    at: Int
    card: Int
    first: Int
    """Position of the first slice of the same card."""

    @classmethod
    def of(cls, card: Int, key: Amounts) -> _Order:
        """Sort the slices by card, then by the key."""
        at = np.lexsort((key, card))
        begins = np.flatnonzero(np.diff(card[at], prepend=-1))
        return cls(at, card[at], np.repeat(begins, np.diff(begins, append=len(at))))

    def sums(self, values: Amounts) -> Amounts:
        """Return the running totals of `values` within each card, each position included."""
        values = values[self.at]
        sums = np.cumsum(values, axis=0)
        before: Amounts = (sums - values)[self.first]
        return sums - before

    def firsts(self, where: Bools) -> Int:
        """Return the first position of each card at which `where` is true."""
        found = np.flatnonzero(where)
        firsts: Int = found[np.diff(self.first[found], prepend=-1) != 0]
        return firsts

    def least(self, values: Amounts, where: Bools, numbers: Amounts) -> Amounts:
        """Return per card the sum of its first `numbers` values at which `where` is true."""
        counted = where[self.at] & (self.sums(where.astype(np.float64)) <= numbers[self.card])
        sums = np.bincount(self.card[counted], values[self.at[counted]], len(numbers))
        return sums.astype(np.float64)


class Costs:
    """Lower bounds of the cost of freeing cards for a pod, node by node.

    Args:
        of: slices of all pods.
        request: request of the pod.
        may_end: by pod of the holdings.
        rows: the nodes.
    """

    def __init__(self, of: Holdings, request: PodRequest, may_end: Bools, rows: Int) -> None:
        self._of, self._rows = of, rows
        wanted = [each for container in request.containers for each in container.requests]
        asks = [ask_of(request, each, of.view, rows) for each in wanted]
        self.count = max(1 if ask.rules.reuses_card else ask.request.count for ask in asks)
        """Number of cards on which capacity must be freed."""
        self._cards = (rows[:, None] * of.places + np.arange(of.places)).ravel()
        self._lack = np.full((len(of.view.nodes) * of.places, 3), np.inf)
        """Lacking MiB, cores and slots, (cards, 3); infinite if preemption cannot help."""
        table = of.view.table(rows)
        self._lack[self._cards] = np.minimum.reduce([ask.lacks(table) for ask in asks])
        self._lacking = np.flatnonzero(((self._lack > 0) & (self._lack < np.inf)).any(axis=0))
        """Amounts (columns of `_lack`) that any card lacks."""
        self._ends = may_end[of.pod]
        order = of.by_weight
        found = order.firsts(self._are_enough(order, self._ends, order.sums))
        self._tops = np.full(len(self._lack), np.inf)
        """Lowest weight per card up to which pods must be preempted; 0: none must be."""
        self._tops[order.card[found]] = of.costs[order.at[found], 0]
        self._tops[np.isinf(self._lack[:, 0])] = np.inf
        self._tops[(self._lack <= 0).all(axis=1)] = 0
        self._tops_of_rows = np.full(len(of.view.nodes), np.inf)
        if self.count <= of.places:
            by_row = np.partition(self._tops.reshape(-1, of.places), self.count - 1, axis=1)
            self._tops_of_rows = by_row[:, self.count - 1]
        # Any of several cards may need the most important of the pods.
        self._upto = self._tops if self.count == 1 else np.repeat(self._tops_of_rows, of.places)
        on = np.bincount(of.pod[self._ends], minlength=len(of.holders))
        self._most_cards = np.ones(len(of.view.nodes), np.int64)
        """Maximum number of cards that one preemptible pod holds, by row."""
        np.maximum.at(self._most_cards, of.rows[on > 1], on[on > 1])

    def spots(self) -> list[tuple[tuple[float, ...], int]]:
        """Return the nodes (rows) where preemption may free enough, the cheapest first.

        Each row follows its lower bound of `Plan.cost`.
        """
        of, rows = self._of, self._rows
        ends = self._ends & (of.costs[:, 0] <= self._upto[of.card])
        pods = self._fewest(ends)
        if self.count == 1:
            # One of the pods has the required importance.
            weights = of.by_weight.least(of.costs[:, 0], ends, pods - 1) + self._tops
        else:
            weights = of.by_weight.least(of.costs[:, 0], ends, pods)
        order, lost = of.by_loss, of.by_loss.least(of.costs[:, 2], ends, pods)
        first = order.firsts(self._are_enough(order, ends, lambda amounts: amounts[order.at]))
        first = first[pods[order.card[first]] == 1]
        lost[order.card[first]] = of.costs[order.at[first], 2]
        weights[self._tops > self._upto] = np.inf
        keys = (lost, pods, weights, np.minimum(self._tops, self._upto))
        by_row = np.lexsort((*(key[self._cards] for key in keys), self._cards // of.places))
        cheapest = self._cards[by_row].reshape(-1, of.places)[:, : self.count]
        sums = np.stack([part[cheapest].sum(axis=1) for part in (weights, pods, lost)])
        if self.count > 1:
            sums /= self._most_cards[rows]
        tops = self._tops_of_rows[rows]
        costs = np.stack([tops + LOWEST_PRIORITY, *sums])
        costs[:, tops == 0] = np.array(NO_COST)[:, None]
        ranked = np.lexsort((of.view.ranks(rows), *costs[::-1]))[: np.isfinite(tops).sum()]
        return [(tuple(costs[:, each].tolist()), int(rows[each])) for each in ranked]

    def _are_enough(self, order: _Order, ends: Bools, freed: Callable[[Amounts], Amounts]) -> Bools:
        """Return for each position of the order whether the amounts freed there suffice."""
        enough = ends[order.at]
        for each in self._lacking.tolist():
            amounts = freed(np.where(ends, self._of.amounts[:, each], 0))
            enough &= amounts >= self._lack[:, each][order.card]
        return enough

    def _fewest(self, ends: Bools) -> Amounts:
        """Return per card the minimum number of these pods to preempt."""
        of, fewest, counted = self._of, np.zeros(len(self._lack)), ends.astype(np.float64)
        for each in self._lacking.tolist():
            order = of.by_amount[each]
            freed = order.sums(np.where(ends, of.amounts[:, each], 0))
            found = order.firsts(ends[order.at] & (freed >= self._lack[:, each][order.card]))
            cards = order.card[found]
            fewest[cards] = np.maximum(fewest[cards], order.sums(counted)[found])
        fewest[self._tops == 0] = 0
        return fewest

    def on(self, row: int) -> list[Holder]:
        """Return the pods of the node that may be preempted."""
        return self._pods(self._on_cards(row))

    def _on_cards(self, row: int) -> list[list[int]]:
        """Return the slices of the node's preemptible pods, card by card."""
        of, order = self._of, self._of.by_weight
        bounds = np.searchsorted(order.card, np.arange(of.places + 1) + row * of.places)
        return [
            [each for each in order.at[low:high].tolist() if self._ends[each]]
            for low, high in pairwise(bounds.tolist())
        ]

    def choices(self, row: int) -> list[list[Holder]]:
        """Return sets of pods whose slices free the lacking amounts, the cheapest first."""
        of, found = self._of, list[tuple[tuple[float, ...], list[int]]]()
        if self.count > 1 and self._most_cards[row] > 1:
            return []  # the cheapest card by card need not be the cheapest in sum
        for card, holdings in enumerate(self._on_cards(row), row * of.places):
            top = self._upto[card]
            if self._tops[card] <= top < np.inf:
                some = [each for each in holdings if of.costs[each, 0] <= top]
                sums, victims = self._cheapest(self._lack[card], some)
                found.append(((top, *sums), victims))
        sets = islice(combinations(sorted(found), self.count), MAX_SETS)
        ranked = sorted(sets, key=lambda some: np.sum([cost for cost, _ in some], axis=0).tolist())
        return [self._pods(victims for _, victims in some) for some in ranked]

    def _pods(self, holdings: Iterable[Iterable[int]]) -> list[Holder]:
        found = dict.fromkeys(self._of.pod[each] for some in holdings for each in some)
        return [self._of.holders[pod] for pod in found]

    def _cheapest(self, lack: Amounts, holdings: list[int]) -> tuple[tuple[float, ...], list[int]]:
        """Return the lowest cost to free the amounts that a card lacks, and the slices to free."""
        amounts, costs = self._of.amounts[holdings], self._of.costs[holdings]
        if len(holdings) <= MAX_TRIED:
            sets = _all_sets(len(holdings))
            sets = sets[(sets @ amounts >= lack).all(axis=1)]
        else:
            sets = _put_back(amounts, lack, np.lexsort((amounts[:, 0], -costs[:, 0])))[None]
        sums = sets @ costs
        best = np.lexsort(sums.T[::-1])[0]
        chosen = np.flatnonzero(sets[best]).tolist()
        return tuple(sums[best].tolist()), [holdings[each] for each in chosen]


@lru_cache(maxsize=MAX_TRIED + 1)
def _all_sets(of: int) -> Amounts:
    """Return all subsets of `of` members as rows of 0 and 1."""
    return (np.arange(2**of)[:, None] >> np.arange(of) & 1).astype(np.float64)


def _put_back(amounts: Amounts, lack: Amounts, order: Int) -> Amounts:
    """Return 1 for slices to free; in this order, each that can be kept is kept."""
    ends, freed = np.ones(len(amounts)), amounts.sum(axis=0)
    for each in order.tolist():
        if (freed - amounts[each] >= lack).all():
            ends[each], freed = 0, freed - amounts[each]
    return ends
