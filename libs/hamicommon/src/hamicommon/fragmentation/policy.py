"""Cache the costs of nodes and cards under the node policy `fragmentation`.

Costs are cached per shape of pod and row of the view, and only rows that have changed since are
computed again, as for vendors' answers (`cluster/cache.py`). A pod with one request that the
standard loop serves is answered from arrays; any other pod walks over the changed rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, PodRequest
from hamicommon.fragmentation.costs import (
    grantable,
    model_prices,
    place_prices,
    places,
    stranded_milli,
)
from hamicommon.fragmentation.remainders import Float64
from hamicommon.fragmentation.states import States, outcomes, states_of
from hamicommon.fragmentation.tables import CurrentTables, Tables
from hamicommon.placement.choice.picks import Picks
from hamicommon.placement.choice.vendor_chooser import asks_chooser
from hamicommon.placement.cluster.cache import ByRow, Latest
from hamicommon.placement.cluster.cards import Cards, Floats, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.filter import fit_with_places
from hamicommon.placement.node_policies import FRAGMENTATION, STEP_MILLI
from hamicommon.placement.node_scores import Parts
from hamicommon.placement.predicates import Ask
from hamicommon.placement.walks.walked import WalkedShape, shape_key

_MAX_SHAPES = 256
"""Maximum number of pod shapes with cached costs; one takes about 600 kB on 5000 nodes."""

_MAX_TOGETHER = 1000
"""Maximum number of rows computed together, so that arrays fit the processor's cache."""


class _HostCosts(ByRow):
    """Costs of pods without cards by row of the view, for one amount of CPU."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.cost = np.zeros(rows)


class _ShapeCosts(WalkedShape):
    """Costs of one pod shape by row of the view, and the cards that it would take."""

    def __init__(self, rows: int, lots: int, ask: Ask | None) -> None:
        """Make room for `rows`; `ask` is set for pods whose costs come from arrays."""
        super().__init__(rows)
        self.ask = ask
        self.cost = np.zeros(rows)
        self.lost = np.zeros((rows, lots))
        """Places for pods with several cards that the row would have less."""
        self.taken = np.zeros(rows)
        """Milli that could be granted of the row's cards, and no longer could."""


class Costs(NamedTuple):
    """Rows that fit a pod, and what the pod would strand there; see `NodeCosts`."""

    rows: Int
    node: Float64
    """(rows,): thousandths that become unusable on the node's own cards."""
    whole: Float64
    """(rows,): thousandths for lost places of pods with several cards."""
    models: Float64
    """(rows,): thousandths that pods lose which can use few models only."""
    known: _ShapeCosts

    @property
    def scores(self) -> Floats:
        """Return the score of each row: minus the cost, in whole steps."""
        return _in_steps(self.node + self.whole + self.models)

    def parts(self, at: Int) -> Parts:
        """Return the parts of the scores at these positions."""
        return self.node[at], self.whole[at], self.models[at]

    def grants(
        self, at: int, request: PodRequest, view: ClusterView
    ) -> tuple[ContainerGrant, ...] | None:
        """Return each container's grant on the row at this position; None: compute it by a walk."""
        return self.known.grants(int(self.rows[at]), request, view)


class Fragmentation:
    """Policy for one view with its mix of usual pods; see `NodePolicy`."""

    def __init__(self) -> None:
        self.tables = CurrentTables()
        self.defer, self.pending = self.tables.defer, self.tables.pending
        self._used: Tables | None = None
        """Tables behind the caches below."""
        self._shape = (-1, -1)
        self._known: Latest[_ShapeCosts] = Latest(_MAX_SHAPES)
        self._hosts: Latest[_HostCosts] = Latest(_MAX_SHAPES)
        """By thousandths of a core."""
        self._now = _NodesNow(0, 0, 0)

    def nodes(
        self,
        request: PodRequest,
        view: ClusterView,
        rows: Int,
        without_cards: Collection[GpuUuid] = (),
    ) -> Costs:
        """Find the rows that fit the pod, and the milli it would strand on each."""
        tables = self._current(view)
        if without_cards:
            known = _ShapeCosts(view.room, len(tables.lots.cards), None)
            self._walk(known, tables, request, view, rows, without_cards)
        else:
            known = self._up_to_date(tables, request, view, rows)
        rows = rows[known.fits[rows]]
        now, count = self._now, len(view.nodes)
        idle = float(now.idle_milli[:count].sum())
        of_place = place_prices(tables, now.places[:count].sum(axis=0), idle)
        of_model = model_prices(tables, now.model[:count], now.grantable[:count], idle)
        none = np.zeros(len(rows))
        whole = known.lost[rows] @ of_place if of_place.any() else none
        scarce = of_model[now.model[rows]] * known.taken[rows] if of_model.any() else none
        return Costs(rows, known.cost[rows], whole, scarce, known)

    def cards(self, ask: Ask, view: ClusterView, rows: Int, cards: Cards) -> Floats:
        """Score cards: the less a slice strands on a card, the higher; see `NodePolicy`.

        Of several cards that are asked for together the fullest are taken.
        """
        if ask.request.count > 1:
            return -(cards.free_core + cards.free_memory).astype(np.float32)
        now = states_of(cards, view.free_cpu(rows) - ask.cpu_milli)
        fitting = ask.fits(cards)
        could = outcomes(now, cards, ask.need, 1, fitting)
        cost = np.full(fitting.shape, np.inf)
        cost[could.row, could.taken[:, 0]] = stranded_milli(self.tables.of(view), could.states)
        return -cost.astype(np.float32)

    def hosts(self, cpu_milli: int, view: ClusterView, rows: Int) -> Floats:
        """Score rows for a pod without cards, by the cards that its CPU would strand."""
        tables = self._current(view)
        known = self._hosts.get(cpu_milli, lambda: _HostCosts(view.room))
        changed = view.row_versions(rows)
        stale = np.flatnonzero(known.stale(rows, changed))
        for start in range(0, len(stale), _MAX_TOGETHER):
            some = stale[start : start + _MAX_TOGETHER]
            asked = rows[some]
            states = self._now.states.take(asked).less_cpu(cpu_milli)
            after = self._now.value(tables, asked, states)
            known.cost[asked] = after - self._now.stranded[asked]
            known.mark_current(asked, changed[some])
        return _in_steps(known.cost[rows])

    def stranded_milli(self, view: ClusterView) -> float:
        """Return the thousandths of all idle cards that no usual pod could use."""
        every = np.arange(len(view.nodes))
        self._now.value(self._current(view), every)
        return float(self._now.stranded[every].sum())

    def _current(self, view: ClusterView) -> Tables:
        """Return current tables, after updating everything else to the view."""
        tables, shape = self.tables.of(view), view.shape
        if tables is not self._used or shape != self._shape:
            self._used, self._shape = tables, shape
            self._known.clear()
            self._hosts.clear()
            self._now = _NodesNow(*shape, len(tables.lots.cards))
        self._now.refresh(view, tables)
        return tables

    def _up_to_date(
        self, tables: Tables, request: PodRequest, view: ClusterView, rows: Int
    ) -> _ShapeCosts:
        """Compute the rows that have changed since the last pod of this shape."""
        key = shape_key(request), request.host.cpu_milli
        lots = len(tables.lots.cards)
        known = self._known.get(key, lambda: _ShapeCosts(view.room, lots, _only_ask(request, view)))
        changed = view.row_versions(rows)
        stale = known.stale(rows, changed)
        asked = rows[stale]
        if len(asked):
            if known.ask is None or asks_chooser(request, view, asked):
                self._walk(known, tables, request, view, asked, ())
            else:
                self._ask(known, tables, known.ask, request, view, asked)
            known.mark_current(asked, changed[stale])
        return known

    def _ask(
        self,
        known: _ShapeCosts,
        tables: Tables,
        ask: Ask,
        request: PodRequest,
        view: ClusterView,
        rows: Int,
    ) -> None:
        """Compute the fit of the pod's only request on all rows together."""
        cards = view.table(rows)
        fitting = ask.fits(cards)
        fits = fitting.sum(axis=1) >= ask.request.count
        known.fits[rows] = fits
        if not fits.all():
            kept = np.flatnonzero(fits)
            rows, cards, fitting = rows[kept], cards.take(kept), fitting[kept]
        if not len(rows):
            return
        now = self._now.states.take(rows).less_cpu(request.host.cpu_milli)
        could = outcomes(now, cards, ask.need, ask.request.count, fitting)
        after = self._now.value(tables, rows, could.states)
        best = could.best(after, cards.numa)
        taken = could.taken[best]
        memory, core, slots = ask.need.amounts_at(cards, taken)
        picks = Picks(
            container=next(n for n, c in enumerate(request.containers) if c.requests),
            vendor=ask.request.vendor,
            places=taken,
            memory=memory,
            core=core,
            slots=slots,
        )
        known.keep(rows, (picks,))
        self._note(known, tables, rows, after[best], could.states.take(best))

    def _walk(
        self,
        known: _ShapeCosts,
        tables: Tables,
        request: PodRequest,
        view: ClusterView,
        rows: Int,
        without_cards: Collection[GpuUuid],
    ) -> None:
        """Compute the fit of any pod by walking its containers over the nodes."""
        known.fits[rows] = False
        rows, found = fit_with_places(request, view, rows, without_cards)
        if not len(rows):
            return
        known.fits[rows] = True
        known.keep(rows, found)
        cards = view.table(rows).fresh()
        for picks in found:
            if request.containers[picks.container].role != "init":
                picks.spend(cards)
        then = states_of(cards, view.free_cpu(rows) - request.host.cpu_milli)
        self._note(known, tables, rows, self._now.value(tables, rows, then), then)

    def _note(
        self, known: _ShapeCosts, tables: Tables, rows: Int, after: Float64, then: States
    ) -> None:
        known.cost[rows] = after - self._now.stranded[rows]
        known.lost[rows] = self._now.places[rows] - places(tables.lots, then)
        if len(tables.confined.models):
            known.taken[rows] = self._now.grantable[rows] - grantable(tables, then)


class _NodesNow(ByRow):
    """Current rows: states, stranded amounts, and room for pods with several cards."""

    def __init__(self, rows: int, places: int, lots: int) -> None:
        """Make room for `rows`, each with `places` cards."""
        super().__init__(rows)
        self.states = States.empty(rows, places)
        self.stranded = np.zeros(rows)
        self.unvalued = np.zeros(rows, np.bool_)
        """Rows of which `stranded` is older than the state."""
        self.places = np.zeros((rows, lots), np.int64)
        self.idle_milli = np.zeros(rows)
        self.model = np.zeros(rows, np.int64)
        self.grantable = np.zeros(rows)
        """Milli that can still be granted of the row's cards, where a model of them is scarce."""

    def refresh(self, view: ClusterView, tables: Tables) -> None:
        """Update the rows that have changed."""
        every = slice(0, len(view.nodes))
        changed = view.row_versions(every)
        rows = np.flatnonzero(self.stale(every, changed))
        if len(rows):
            states = states_of(view.table(rows), view.free_cpu(rows))
            self.states.put(rows, states)
            self.unvalued[rows] = True
            self.places[rows] = places(tables.lots, states)
            self.idle_milli[rows] = tables.idle_milli(states.core, states.memory).sum(axis=1)
            if len(tables.confined.models):
                self.model[rows] = states.model.max(axis=1)
                self.grantable[rows] = grantable(tables, states)
            self.mark_current(rows, changed[rows])

    def value(self, tables: Tables, rows: Int, others: States | None = None) -> Float64:
        """Compute the values of states `others`, and of rows without a value."""
        rows = rows[self.unvalued[rows]]
        if not len(rows):
            return np.zeros(0) if others is None else stranded_milli(tables, others)
        states = self.states.take(rows)
        found = stranded_milli(tables, states if others is None else states.followed_by(others))
        self.stranded[rows], self.unvalued[rows] = found[: len(rows)], False
        return found[len(rows) :]


def _in_steps(cost: Float64) -> Floats:
    steps: Floats = np.rint(cost / STEP_MILLI).astype(np.float32)
    return steps * np.float32(-STEP_MILLI)


def _only_ask(request: PodRequest, view: ClusterView) -> Ask | None:
    """Prepare the request of a pod that has one request and takes the first cards that fit.

    Returns None if it has several requests, or other constraints.
    """
    asked: list[DeviceRequest] = [one for c in request.containers for one in c.requests]
    if len(asked) != 1 or request.policy.gpu != (FRAGMENTATION,) or request.policy.numa_first:
        return None
    selection = request.selection_of(asked[0].vendor)
    if selection.use_uuids or selection.avoid_uuids or selection.numa_bind:
        return None
    return Ask.of(request, asked[0], view)
