"""Walks a pod's containers over the candidates: who can take all of them, and on which cards.

All candidates are walked at once (arrays of nodes x places); a node that can't take a request drops
out with its reasons. Each init container meets the node as it is now, app containers add up
(protocol sheet 4.6). Rules are in `rules.py`, the order of cards in `ordering.py`, the choice in
`picking.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest, Selection
from hamicommon.placement import ordering, picking
from hamicommon.placement.cards import Cards, Codes, Int
from hamicommon.placement.refusal import Step
from hamicommon.placement.rules import Ask, Rule, core_of, type_codes
from hamicommon.placement.view import ClusterView

ANY_CARD = Selection()


class Fitted(NamedTuple):
    """Survivors with what each of their containers gets."""

    survivors: Int
    """Rows of the view."""
    grants: list[tuple[ContainerGrant, ...]]
    """One per survivor, containers in spec order."""
    steps: list[Step]
    """Where the others dropped out."""


def fit(
    request: PodRequest, view: ClusterView, rows: Int, without_cards: Collection[GpuUuid]
) -> tuple[Int, list[Step]]:
    """The rows that can take the whole pod, and the steps at which the others dropped out."""
    walk = _Walk(request, view, rows, without_cards)
    walk.run(pick_last=False)
    return walk.rows, walk.steps


def fit_with_picks(
    request: PodRequest, view: ClusterView, rows: Int, without_cards: Collection[GpuUuid]
) -> Fitted:
    """As `fit`, with the cards that every survivor would give."""
    walk = _Walk(request, view, rows, without_cards)
    walk.run(pick_last=True)
    return Fitted(walk.rows, walk.grants(), walk.steps)


@dataclass(slots=True)
class _Picks:
    """The places that one request takes on every surviving row."""

    container: int
    vendor: str
    core: int
    places: Int
    """(rows, count), in the order picked."""
    memory: Int
    """(rows, count): MiB on each."""


@dataclass(slots=True)
class _Stock:
    """The cards as a container meets them, and the order in which the one before left them."""

    cards: Cards
    order: Int | None = None

    def narrow(self, kept: Int) -> None:
        self.cards = self.cards.take(kept)
        if self.order is not None:
            self.order = self.order[kept]

    def spend(self, picks: _Picks) -> None:
        where = (np.arange(len(picks.places))[:, None], picks.places)
        self.cards.used_slots[where] += 1
        self.cards.used_memory[where] += picks.memory
        self.cards.used_core[where] += picks.core


class _Choice(NamedTuple):
    """What one request found on every row."""

    order: Int | None
    found: Int
    """(rows,): cards that can be had."""
    dropped: Int
    """(rows,): picks dropped by NUMA grouping."""
    walks: list[picking.NumaWalk] | None


class _Walk:
    """State of one walk: the rows that are still in, their cards, and what they gave so far."""

    def __init__(
        self, request: PodRequest, view: ClusterView, rows: Int, without: Collection[GpuUuid]
    ) -> None:
        self.request = request
        self.view = view
        self.rows = rows
        self.without = without
        self.steps: list[Step] = []
        self._picks: list[_Picks] = []
        self._now = _Stock(view.table(rows))
        """The cards as they are; never spent from."""
        self._app: _Stock | None = None
        """What the app containers so far have left."""

    def run(self, *, pick_last: bool) -> None:
        """Asks request after request; `pick_last` False leaves open which cards the last takes."""
        asking = [
            (index, container)
            for index, container in enumerate(self.request.containers)
            if container.requests
        ]
        for index, container in asking:
            stock = self._stock_for(container)
            for number, wanted in enumerate(container.requests, start=1):
                last = index == asking[-1][0] and number == len(container.requests)
                self._ask(stock, index, wanted, pick=pick_last or not last)
                if not len(self.rows):
                    return

    def _stock_for(self, container: ContainerRequest) -> _Stock:
        if container.role == "init":
            return _Stock(self._now.cards.fresh())
        if self._app is None:
            self._app = _Stock(self._now.cards.fresh())
        return self._app

    def _ask(self, stock: _Stock, container: int, wanted: DeviceRequest, *, pick: bool) -> None:
        selection = self.request.selections.get(wanted.vendor, ANY_CARD)
        ask = self._prepared(wanted, selection)
        codes = ask.judge(stock.cards)
        choice = self._choose(stock, ask, codes, selection, pick=pick)
        kept = np.flatnonzero(choice.found >= wanted.count)
        if len(kept) < len(self.rows):
            self.steps.append(
                Step(
                    container=self.request.containers[container].name,
                    ask=ask,
                    rows=self.rows,
                    cards=stock.cards,
                    codes=codes,
                    partial=choice.found,
                    dropped=choice.dropped,
                ).narrowed(np.flatnonzero(choice.found < wanted.count))
            )
        if not pick or not len(kept):
            self.rows = self.rows[kept]
            return
        picks = self._pick(stock, ask, codes, choice, kept, container)
        self._narrow(stock, choice, kept)
        self._picks.append(picks)
        stock.spend(picks)

    def _prepared(self, wanted: DeviceRequest, selection: Selection) -> Ask:
        barred = None
        if selection.use_uuids:
            barred = ~self.view.marks(selection.use_uuids, self.rows)
        if selection.avoid_uuids:
            avoided = self.view.marks(selection.avoid_uuids, self.rows)
            barred = avoided if barred is None else barred | avoided
        return Ask(
            request=wanted,
            type_codes=type_codes(self.view.models, wanted.vendor, selection),
            core=core_of(wanted),
            mutex="mutex" in self.request.policy.gpu,
            barred=barred,
            taken=self.view.marks(self.without, self.rows) if self.without else None,
        )

    def _choose(
        self, stock: _Stock, ask: Ask, codes: Codes, selection: Selection, *, pick: bool
    ) -> _Choice:
        """How many cards every row has, and their order where it will be needed."""
        order = None
        if pick or selection.numa_bind:
            order = self._order(stock, ask, selection)
        if order is None or not selection.numa_bind:
            found = (codes == Rule.FITS).sum(axis=1)
            return _Choice(order, found, np.zeros_like(found), None)
        walks = [
            picking.walk_numa(*row, ask.request.count, all_of=self._by_topology)
            for row in zip(codes, order, stock.cards.numa, strict=True)
        ]
        found = np.array([len(walk.picks) for walk in walks], np.int64)
        return _Choice(order, found, np.array([w.dropped for w in walks], np.int64), walks)

    def _order(self, stock: _Stock, ask: Ask, selection: Selection) -> Int:
        policy = self.request.policy
        counted = np.array([model.type == ask.request.vendor for model in self.view.models])
        scores = ordering.card_scores(stock.cards, policy.weights, ask, counted)
        return ordering.order(stock.cards, scores, policy, selection.numa_bind, stock.order)

    def _pick(
        self, stock: _Stock, ask: Ask, codes: Codes, choice: _Choice, kept: Int, container: int
    ) -> _Picks:
        """The cards that the rows `kept` give."""
        assert choice.order is not None
        count = ask.request.count
        if choice.walks is None and not self._by_topology:
            places = picking.first_that_fit(codes[kept], choice.order[kept], count)
        else:
            rows = [
                self._of_one_row(row, codes[row], choice.order[row], count, choice.walks)
                for row in kept.tolist()
            ]
            places = np.array(rows, np.int64).reshape(len(kept), count)
        memory = ask.memory_on(stock.cards)
        if not isinstance(memory, int):
            memory = np.take_along_axis(memory[kept], places, axis=1)
        return _Picks(
            container=container,
            vendor=ask.request.vendor,
            core=ask.core,
            places=places,
            memory=np.broadcast_to(np.asarray(memory, np.int64), places.shape),
        )

    def _of_one_row(
        self, row: int, codes: Codes, order: Int, count: int, walks: list[picking.NumaWalk] | None
    ) -> tuple[int, ...]:
        if walks is None:
            fitting = tuple(place for place in order[::-1].tolist() if codes[place] == Rule.FITS)
        else:
            fitting = walks[row].picks
        if not self._by_topology:
            return fitting[:count]
        return picking.best_connected(fitting, count, self.view.pairs(int(self.rows[row])))

    @property
    def _by_topology(self) -> bool:
        return "topology-aware" in self.request.policy.gpu

    def _narrow(self, stock: _Stock, choice: _Choice, kept: Int) -> None:
        """Leaves only the rows `kept`, here and in everything remembered of earlier requests."""
        stock.order = choice.order
        if len(kept) == len(self.rows):
            return
        self.rows = self.rows[kept]
        for picks in self._picks:
            picks.places, picks.memory = picks.places[kept], picks.memory[kept]
        for known in {id(s): s for s in (stock, self._now, self._app) if s is not None}.values():
            known.narrow(kept)

    def grants(self) -> list[tuple[ContainerGrant, ...]]:
        """Per surviving row, what every container gets."""
        return [
            tuple(
                ContainerGrant(
                    index=index,
                    name=container.name,
                    role=container.role,
                    shares=tuple(self._shares(row, index, uuids)),
                )
                for index, container in enumerate(self.request.containers)
            )
            for row, uuids in enumerate(self.view.uuids(row) for row in self.rows.tolist())
        ]

    def _shares(
        self, row: int, container: int, uuids: tuple[GpuUuid, ...]
    ) -> Iterator[DeviceShare]:
        for picks in self._picks:
            if picks.container == container:
                places, memory = picks.places[row].tolist(), picks.memory[row].tolist()
                for place, memory_mib in zip(places, memory, strict=True):
                    yield DeviceShare(
                        uuid=uuids[place],
                        vendor=picks.vendor,
                        memory_mib=memory_mib,
                        core_percent=picks.core,
                    )
