"""What a placement would strand, by node: the score of the node policy `fragmentation`.

Costs are kept per shape of pod and row of the view, and only rows that have changed since are
asked again, as vendors' answers are (`cluster/cache.py`). A plain pod (one request, the standard
loop) is answered from arrays; any other pod walks over the changed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import NamedTuple, TypeVar, cast

import numpy as np

from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.placement.choice.ordering import FRAGMENTATION
from hamicommon.placement.choice.picks import Picks
from hamicommon.placement.choice.vendor_chooser import asks_chooser
from hamicommon.placement.cluster.cache import Latest
from hamicommon.placement.cluster.cards import Floats, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.filter import fit_with_places
from hamicommon.placement.fragmentation import scarce_models, whole_nodes
from hamicommon.placement.fragmentation.card_costs import outcomes
from hamicommon.placement.fragmentation.current import tables_of
from hamicommon.placement.fragmentation.demand import Float64
from hamicommon.placement.fragmentation.kept_rows import KnownHost, KnownShape, NodesNow
from hamicommon.placement.fragmentation.states import States, states_of
from hamicommon.placement.fragmentation.tables import Tables
from hamicommon.placement.node_scores import Parts
from hamicommon.placement.predicates import Ask, needs, type_codes
from hamicommon.placement.walks.walked import Grants, WalkedShape, grants_of, shape_key

STEP_MILLI = 30.0
"""Costs are compared in steps of so much: nodes that differ by less are equal, and the first by
name is taken. Filling nodes in a fixed order is worth more than the last milli."""

_SHAPES = 256
"""Shapes whose costs are kept, the latest; on 5000 nodes one takes about 500 kB."""

_ANY = Selection()

_Shape = TypeVar("_Shape", bound=KnownShape)

_AT_ONCE = 1000
"""Rows whose costs are computed together: the arrays of more fit into no processor's cache."""


class Costs(NamedTuple):
    """The rows that fit, and what the pod would strand on each."""

    rows: Int
    node: Float64
    """(rows,): milli that its node's cards lose."""
    whole: Float64
    """(rows,): milli for the places that pods with several cards lose."""
    models: Float64
    """(rows,): milli that pods lose which can do with few models of cards alone."""
    ask: Ask | None = None
    places: Int | None = None
    """(rows, count): cards that a plain pod takes, in the order picked."""
    walked: WalkedShape | None = None
    """What is known of any other pod."""

    @property
    def scores(self) -> Floats:
        """(rows,): the highest is the best; minus the cost, in whole steps."""
        steps: Floats = np.rint((self.node + self.whole + self.models) / STEP_MILLI).astype(
            np.float32
        )
        return steps * np.float32(-STEP_MILLI)

    def parts(self, at: Int) -> Parts:
        """What the scores at these positions are made of."""
        return self.node[at], self.whole[at], self.models[at]

    def grants(self, at: int, request: PodRequest, view: ClusterView) -> Grants | None:
        """What every container gets on the row at this position; None: walk for it."""
        if self.walked is not None:
            return self.walked.grants(int(self.rows[at]), request, view)
        if self.ask is None or self.places is None:
            return None
        row = self.rows[at : at + 1]
        places = self.places[at : at + 1]
        memory, core, slots = self.ask.need.amounts_at(view.table(row), places)
        number = next(n for n, c in enumerate(request.containers) if c.requests)
        picks = Picks(
            container=number,
            vendor=self.ask.request.vendor,
            places=places,
            memory=memory,
            core=core,
            slots=slots,
        )
        return grants_of((picks,), 0, int(row[0]), request, view)


class NodeCosts:
    """The costs of a view's rows under its mix of usual pods; kept in `view.memory`."""

    def __init__(self) -> None:
        self._tables: Tables | None = None
        self._shape = (-1, -1)
        self._known: Latest[KnownShape] = Latest(_SHAPES)
        self._hosts: Latest[KnownHost] = Latest(_SHAPES)
        """By thousandths of a core."""
        self._now = NodesNow(0, 0, 0)

    def of(
        self,
        request: PodRequest,
        view: ClusterView,
        rows: Int,
        without_cards: Collection[GpuUuid] = (),
    ) -> Costs:
        """Which of the rows fit, and what that would strand."""
        tables = self._current(view)
        wanted = None if without_cards else _plain(request)
        known = None if wanted is None else self._asked(wanted, request, view, rows)
        walked = None
        if known is None and without_cards:
            known = walked = WalkedShape(view.room, len(tables.lots.cards))
            self._walk(walked, request, view, rows, without_cards)
        elif known is None:
            known = walked = self._walked(request, view, rows)
        rows = rows[known.fits[rows]]
        prices, by_model = self._prices(view)
        none = np.zeros(len(rows))
        whole = known.lost[rows] @ prices if prices.any() else none
        scarce = by_model[self._now.model[rows]] * known.taken[rows] if by_model.any() else none
        places = None if known.ask is None else known.places[rows]
        return Costs(rows, known.cost[rows], whole, scarce, known.ask, places, walked)

    def of_host(self, cpu_milli: int, view: ClusterView, rows: Int) -> Costs:
        """For a pod without cards: what its CPU would strand of the nodes' cards."""
        tables = self._current(view)
        known = self._hosts.get(cpu_milli, lambda: KnownHost(view.room))
        changed = view.changed(rows)
        stale = np.flatnonzero(known.stale(rows, changed))
        for start in range(0, len(stale), _AT_ONCE):
            some = stale[start : start + _AT_ONCE]
            asked = rows[some]
            states = self._now.states.take(asked).less_cpu(cpu_milli)
            after = self._now.value(tables, asked, states)
            known.cost[asked] = after - self._now.stranded[asked]
            known.saw(asked, changed[some])
        none = np.zeros(len(rows))
        return Costs(rows, known.cost[rows], none, none)

    def stranded_milli(self, view: ClusterView) -> float:
        """On all nodes, by the same measure."""
        every = np.arange(len(view.nodes))
        self._now.value(self._current(view), every)
        return float(self._now.stranded[every].sum())

    def _current(self, view: ClusterView) -> Tables:
        """Everything else is up to date with the view afterwards."""
        tables, shape = tables_of(view), view.shape
        if tables is not self._tables or shape != self._shape:
            self._tables, self._shape = tables, shape
            self._known.clear()
            self._hosts.clear()
            self._now = NodesNow(*shape, len(tables.lots.cards))
        self._now.refresh(view, tables)
        return tables

    def _prices(self, view: ClusterView) -> tuple[Float64, Float64]:
        """(lots,): milli that the loss of one place costs; (models,): that of one milli."""
        assert self._tables is not None
        tables, now, count = self._tables, self._now, len(view.nodes)
        idle = float(now.idle_milli[:count].sum())
        return (
            whole_nodes.prices(tables, now.places[:count].sum(axis=0), idle),
            scarce_models.prices(tables, now.model[:count], now.worth[:count], idle),
        )

    def _asked(
        self, wanted: DeviceRequest, request: PodRequest, view: ClusterView, rows: Int
    ) -> KnownShape | None:
        """All rows' answers, the changed ones' new; None: a vendor's chooser has to decide."""
        selection = request.selections.get(wanted.vendor, _ANY)
        shape = (wanted, selection, request.host.cpu_milli)
        known = self._kept(
            shape, lambda: KnownShape(view.room, self._lots, _ask(wanted, selection, view))
        )
        changed = view.changed(rows)
        stale = known.stale(rows, changed)
        if stale.any():
            rows = rows[stale]
            if asks_chooser(wanted, selection, view, rows):
                return None
            self._ask_rows(known, request.host.cpu_milli, view, rows)
            known.saw(rows, changed[stale])
        return known

    def _kept(self, shape: Hashable, new: Callable[[], _Shape]) -> _Shape:
        """What is known of a shape of pod, each of which has one class alone."""
        return cast("_Shape", self._known.get(shape, new))

    @property
    def _lots(self) -> int:
        return self._now.places.shape[1]

    def _walked(self, request: PodRequest, view: ClusterView, rows: Int) -> WalkedShape:
        """As `_asked`, for any pod: the changed rows are walked."""
        shape = shape_key(request), request.host.cpu_milli
        known = self._kept(shape, lambda: WalkedShape(view.room, self._lots))
        changed = view.changed(rows)
        stale = known.stale(rows, changed)
        if stale.any():
            self._walk(known, request, view, rows[stale], ())
            known.saw(rows[stale], changed[stale])
        return known

    def _ask_rows(self, known: KnownShape, cpu_milli: int, view: ClusterView, rows: Int) -> None:
        assert known.ask is not None
        assert self._tables is not None
        cards = view.table(rows)
        fitting = known.ask.fits(cards)
        fits = fitting.sum(axis=1) >= known.ask.request.count
        known.fits[rows] = fits
        if not fits.all():
            kept = np.flatnonzero(fits)
            rows, cards, fitting = rows[kept], cards.take(kept), fitting[kept]
        if not len(rows):
            return
        now = self._now.states.take(rows).less_cpu(cpu_milli)
        ask = known.ask
        could = outcomes(now, cards, ask.need, ask.request.count, fitting)
        after = self._now.value(self._tables, rows, could.states)
        best = could.best(after, cards.numa)
        known.places[rows] = could.taken[best]
        self._note(known, rows, after[best], could.states.take(best))

    def _walk(
        self,
        known: WalkedShape,
        request: PodRequest,
        view: ClusterView,
        rows: Int,
        without_cards: Collection[GpuUuid],
    ) -> None:
        """Any pod: its containers meet the nodes one after the other, as they will."""
        assert self._tables is not None
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
        self._note(known, rows, self._now.value(self._tables, rows, then), then)

    def _note(self, known: KnownShape, rows: Int, after: Float64, then: States) -> None:
        assert self._tables is not None
        known.cost[rows] = after - self._now.stranded[rows]
        left = whole_nodes.places(self._tables.lots, then)
        known.lost[rows] = self._now.places[rows] - left
        if len(self._tables.confined.models):
            known.taken[rows] = self._now.worth[rows] - scarce_models.worth(self._tables, then)


def _plain(request: PodRequest) -> DeviceRequest | None:
    """The only request of a pod for which the first cards that fit are taken, in our order."""
    asked = [wanted for container in request.containers for wanted in container.requests]
    if len(asked) != 1 or request.policy.gpu != (FRAGMENTATION,) or request.policy.numa_first:
        return None
    selection = request.selections.get(asked[0].vendor, _ANY)
    if selection.use_uuids or selection.avoid_uuids or selection.numa_bind:
        return None
    return asked[0]


def _ask(wanted: DeviceRequest, selection: Selection, view: ClusterView) -> Ask:
    rules = view.rules(wanted.vendor)
    return Ask(
        request=wanted,
        rules=rules,
        type_codes=type_codes(view.models, wanted.vendor, selection),
        need=needs(view.models, wanted, selection, rules),
        mutex=False,
    )
