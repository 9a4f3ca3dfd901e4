"""Walks a pod's containers over the candidates: who can take all of them, and on which cards.

All candidates are walked at once (arrays of nodes x places); a node that can't take a request drops
out with its reasons. Each init container meets the node as it is now, app containers add up
(protocol sheet 4.6). Rules are in `judging.py`, the order of cards in `ordering.py`, the choice in
`picking.py` or the vendor's (`asking.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest, Selection
from hamicommon.placement import ordering, picking
from hamicommon.placement.asking import Asked, Asking, Picks, Shares, place_of
from hamicommon.placement.cards import Bools, Cards, Int
from hamicommon.placement.judging import Ask, needs, type_codes
from hamicommon.placement.refusal import Step
from hamicommon.placement.vendor_rules import Chosen
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
class _Stock:
    """The cards as a container meets them, and the order in which the one before left them."""

    cards: Cards
    order: Int | None = None
    spent: list[Picks] = field(default_factory=list)

    def narrow(self, kept: Int) -> None:
        self.cards = self.cards.take(kept)
        if self.order is not None:
            self.order = self.order[kept]


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
        self._picks: list[Picks] = []
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
        """Asks one request of all rows; those that can't take it drop out."""
        selection = self.request.selections.get(wanted.vendor, ANY_CARD)
        ask = self._prepared(stock, wanted, selection)
        asking = Asking(
            ask=ask,
            selection=selection,
            policies=self.request.policy.gpu,
            view=self.view,
            rows=self.rows,
            cards=stock.cards,
            spent=stock.spent,
        )
        choice = _Choice(asking, stock, self.request, selection, pick=pick)
        kept = np.flatnonzero(choice.fits)
        if len(kept) < len(self.rows):
            self.steps.append(
                Step(
                    container=self.request.containers[container].name,
                    ask=ask,
                    rows=self.rows,
                    cards=stock.cards,
                    refused=np.flatnonzero(~choice.fits),
                    partial=choice.found,
                    dropped=choice.dropped,
                    asked=choice.asked,
                )
            )
        if not pick or not len(kept):
            self.rows = self.rows[kept]
            return
        picks = choice.picks(kept, container)
        stock.order = choice.order
        self._narrow(stock, kept)
        self._picks.append(picks)
        stock.spent.append(picks)
        picks.spend(stock.cards)

    def _prepared(self, stock: _Stock, wanted: DeviceRequest, selection: Selection) -> Ask:
        view, rules = self.view, self.view.rules(wanted.vendor)
        barred = None
        if selection.use_uuids:
            barred = ~view.marks(selection.use_uuids, self.rows)
        if selection.avoid_uuids:
            avoided = view.marks(selection.avoid_uuids, self.rows)
            barred = avoided if barred is None else barred | avoided
        return Ask(
            request=wanted,
            rules=rules,
            type_codes=type_codes(view.models, wanted.vendor, selection),
            need=needs(view.models, wanted, selection, rules),
            mutex="mutex" in self.request.policy.gpu,
            barred=barred,
            taken=view.marks(self.without, self.rows) if self.without else None,
            elsewhere=self._elsewhere(stock, wanted.vendor) if rules.same_card else None,
        )

    def _elsewhere(self, stock: _Stock, vendor: str) -> Bools | None:
        """Cards other than the one that the vendor's earlier containers are all on.

        HAMi looks the earlier cards up under the card's type, so the rule holds only for cards
        whose type is the vendor's word (sheet 1.6 and 8.3, 25).
        """
        earlier = [picks.places for picks in stock.spent if picks.vendor == vendor]
        if not earlier:
            return None
        places = np.concatenate(earlier, axis=1)
        first = places[:, :1]
        other: Bools = np.arange(stock.cards.model.shape[1]) != first
        other |= (places != first).any(axis=1, keepdims=True)
        other &= _typed_as(self.view, vendor)[stock.cards.model]
        return other

    def _narrow(self, stock: _Stock, kept: Int) -> None:
        """Leaves only the rows `kept`, here and in everything remembered of earlier requests."""
        if len(kept) == len(self.rows):
            return
        self.rows = self.rows[kept]
        for picks in self._picks:
            picks.narrow(kept)
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
                    shares=self._shares(position, row, index),
                )
                for index, container in enumerate(self.request.containers)
            )
            for position, row in enumerate(self.rows.tolist())
        ]

    def _shares(self, position: int, row: int, container: int) -> Shares:
        return tuple(
            share
            for picks in self._picks
            if picks.container == container
            for share in picks.shares(position, self.view.usages(row), self.view)
        )


class _Choice:
    """What one request finds on every row, and which slices the rows then give."""

    def __init__(
        self,
        asking: Asking,
        stock: _Stock,
        request: PodRequest,
        selection: Selection,
        *,
        pick: bool,
    ) -> None:
        self._asking = asking
        self._stock = stock
        self._request = request
        self._selection = selection
        self.asked = Asked()
        self.order: Int | None = None
        """(rows, places); made where it is needed of all rows."""
        self._walk: picking.NumaWalk | None = None
        ask, cards = asking.ask, stock.cards
        if pick or selection.numa_bind:
            self.order = self._order(slice(None))
        self._fitting = ask.fits(cards)
        self.found: Int = self._fitting.sum(axis=1)
        """(rows,): cards that can be had; of the last NUMA group where bound to one."""
        if selection.numa_bind:
            assert self.order is not None
            self._walk = picking.walk_numa(
                ask.judge(cards),
                self.order,
                cards.numa,
                ask.request.count,
                all_of=self._by_topology,
            )
            self.found = self._walk.found
        self.fits: Bools = self.found >= ask.request.count
        self._special = asking.rows_that_need_it()
        self._decided = ask.rules.decides(ask.request, selection)
        if self._decided and self._special.any():
            self._let_decide(np.flatnonzero(self._special))

    @property
    def dropped(self) -> Int | None:
        """(rows,): picks dropped by NUMA grouping."""
        return None if self._walk is None else self._walk.dropped

    @property
    def _by_topology(self) -> bool:
        return "topology-aware" in self._request.policy.gpu

    def _let_decide(self, positions: Int) -> None:
        order = self._order(positions) if self.order is None else self.order[positions]
        self._asking.ask_all(positions, order, self.asked)
        for position in positions.tolist():
            self.fits[position] = isinstance(self.asked.answers[position], Chosen)

    def _order(self, rows: Int | slice) -> Int:
        stock, policy, request = self._stock, self._request.policy, self._asking.ask.request
        cards = stock.cards.take(rows)
        counted = _typed_as(self._asking.view, request.vendor)
        scores = ordering.card_scores(cards, policy.weights, request, counted)
        prior = None if stock.order is None else stock.order[rows]
        numa_first = policy.numa_first or self._selection.numa_bind
        return ordering.order(cards, scores, policy, numa_first, prior)

    def picks(self, kept: Int, container: int) -> Picks:
        """What the rows `kept` give."""
        assert self.order is not None
        count, view = self._asking.ask.request.count, self._asking.view
        if not self._special[kept].any():
            return self._standard(self._places(kept, count), kept, container)
        missing = kept[self._special[kept]] if not self._decided else kept[:0]
        self._asking.ask_all(missing, self.order[missing], self.asked)
        chosen = [self._chosen(position) for position in kept.tolist()]
        plain = np.array([answer is None for answer in chosen])
        places = np.zeros((len(kept), count), np.int64)
        if plain.any():
            places[plain] = self._places(kept[plain], count)
        picks = self._standard(places, kept, container)
        picks.chosen = chosen
        for number, answer in enumerate(chosen):
            if answer is not None:
                uuids = view.uuids(int(self._asking.rows[kept[number]]))
                picks.places[number] = [place_of(share.uuid, uuids) for share in answer.shares]
                picks.memory[number] = [share.memory_mib for share in answer.shares]
                picks.core[number] = [share.core_percent for share in answer.shares]
                picks.slots[number] = [share.slots for share in answer.shares]
        return picks

    def _chosen(self, position: int) -> Chosen | None:
        answer = self.asked.answers.get(position)
        if answer is not None and not isinstance(answer, Chosen):
            vendor = self._asking.ask.request.vendor
            raise ValueError(f"the chooser of {vendor} refused a node with enough cards: {answer}")
        return answer

    def _standard(self, places: Int, kept: Int, container: int) -> Picks:
        """The slices at these places, each as much as the vendor's `need` says."""
        ask, cards = self._asking.ask, self._stock.cards

        def amount(on_cards: Int | int) -> Int:
            if isinstance(on_cards, int):
                return np.full(places.shape, on_cards, np.int64)
            return np.take_along_axis(on_cards[kept], places, axis=1)

        return Picks(
            container=container,
            vendor=ask.request.vendor,
            places=places,
            memory=amount(ask.need.memory_on(cards)),
            core=amount(ask.need.core_on(cards)),
            slots=amount(ask.need.slots_on(cards)),
        )

    def _places(self, kept: Int, count: int) -> Int:
        """(kept, count): places of the rows that the standard loop serves."""
        assert self.order is not None
        if self._walk is None and not self._by_topology:
            return picking.first_that_fit(self._fitting[kept], self.order[kept], count)
        if not self._by_topology:
            assert self._walk is not None
            return self._walk.places[kept, :count]
        rows = [self._best_connected(position, count) for position in kept.tolist()]
        return np.array(rows, np.int64).reshape(len(kept), count)

    def _best_connected(self, position: int, count: int) -> tuple[int, ...]:
        if self._walk is None:
            assert self.order is not None
            walked = self.order[position, ::-1]
            fitting = walked[self._fitting[position, walked]]
        else:
            fitting = self._walk.places[position, : self._walk.found[position]]
        pairs = self._asking.view.pair_matrix(int(self._asking.rows[position]))
        return picking.best_connected(tuple(fitting.tolist()), count, pairs)


def _typed_as(view: ClusterView, word: str) -> Bools:
    """By model: whether the card's type is just the vendor's word."""
    return np.array([model is not None and model.type == word for model in view.models])
