"""Walks a pod's containers over the candidates: who can take all of them, and on which cards.

All candidates are walked at once (arrays of nodes x places); a node that can't take a request drops
out with its reasons. Each init container meets the node as it is now, less the sidecars declared
before it; sidecars and app containers add up (protocol 4.6). Rules are in `predicates.py`, what a
request finds and takes in `choice/slices.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest
from hamicommon.placement.choice.picks import Picks, Shares
from hamicommon.placement.choice.slices import Choice, Stock
from hamicommon.placement.choice.vendor_chooser import VendorChoosers
from hamicommon.placement.cluster.cards import Bools, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.predicates import Ask, typed_as
from hamicommon.placement.unschedulable import Step


class Fitted(NamedTuple):
    """Survivors with what each of their containers gets."""

    survivors: Int
    """Rows of the view."""
    grants: list[tuple[ContainerGrant, ...]]
    """One per survivor, containers in spec order."""
    steps: list[Step]
    """Steps at which the other nodes dropped out."""


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
    """Fit the pod as `fit` does, and return the cards that every survivor would give."""
    walk = _Walk(request, view, rows, without_cards)
    walk.run(pick_last=True)
    return Fitted(walk.rows, walk.grants(), walk.steps)


def fit_with_places(
    request: PodRequest, view: ClusterView, rows: Int, without_cards: Collection[GpuUuid]
) -> tuple[Int, list[Picks]]:
    """The rows that can take the whole pod, and what each of its requests takes there."""
    walk = _Walk(request, view, rows, without_cards)
    walk.run(pick_last=True)
    return walk.rows, walk.picks


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
        self.picks: list[Picks] = []
        self._now = Stock(view.table(rows))
        """The cards as they are; never spent from."""
        self._together: Stock | None = None
        """Room that the sidecars and app containers so far have left."""

    def run(self, *, pick_last: bool) -> None:
        """Ask request after request; `pick_last` False leaves open which cards the last takes."""
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

    def _stock_for(self, container: ContainerRequest) -> Stock:
        if container.role == "init":
            # App containers come after all init containers, so only sidecars have taken any yet.
            before = self._together or self._now
            return Stock(before.cards.fresh(), spent=list(before.spent))
        if self._together is None:
            self._together = Stock(self._now.cards.fresh())
        return self._together

    def _ask(self, stock: Stock, container: int, wanted: DeviceRequest, *, pick: bool) -> None:
        """Ask one request of all rows; those that can't take it drop out."""
        ask = self._prepared(stock, wanted)
        asking = VendorChoosers(
            ask=ask,
            view=self.view,
            rows=self.rows,
            cards=stock.cards,
            prior=stock.order,
            spent=tuple(stock.spent),
        )
        choice = Choice(asking, pick=pick)
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
                    largest_group=choice.largest_group,
                    asked=choice.asked,
                )
            )
        if not pick or not len(kept):
            self.rows = self.rows[kept]
            return
        picks = choice.picks(kept, container)
        stock.order = choice.order
        self._narrow(stock, kept)
        self.picks.append(picks)
        stock.spent.append(picks)
        picks.spend(stock.cards)

    def _prepared(self, stock: Stock, wanted: DeviceRequest) -> Ask:
        view = self.view
        ask = Ask.of(self.request, wanted, view)
        selection = ask.selection
        if selection.use_uuids:
            ask.barred = ~view.chosen(selection.use_uuids, self.rows)
        if selection.avoid_uuids:
            avoided = view.chosen(selection.avoid_uuids, self.rows)
            ask.barred = avoided if ask.barred is None else ask.barred | avoided
        if self.without:
            ask.taken = view.marks(self.without, self.rows)
        if ask.rules.same_card:
            ask.elsewhere = self._elsewhere(stock, wanted.vendor)
        return ask

    def _elsewhere(self, stock: Stock, vendor: str) -> Bools | None:
        """Cards other than the one that the vendor's earlier containers are all on.

        HAMi looks the earlier cards up under the card's type, so the rule holds only for cards
        whose type is the vendor's name (protocol 1.6 and 8.3, 25).
        """
        earlier = [picks.places for picks in stock.spent if picks.vendor == vendor]
        if not earlier:
            return None
        places = np.concatenate(earlier, axis=1)
        first = places[:, :1]
        other: Bools = np.arange(stock.cards.model.shape[1]) != first
        other |= (places != first).any(axis=1, keepdims=True)
        other &= typed_as(self.view.models, vendor)[stock.cards.model]
        return other

    def _narrow(self, stock: Stock, kept: Int) -> None:
        """Leave only the rows `kept`, here and in everything remembered of earlier requests."""
        if len(kept) == len(self.rows):
            return
        self.rows = self.rows[kept]
        for picks in self.picks:
            picks.narrow(kept)
        stocks = (stock, self._now, self._together)
        for known in {id(each): each for each in stocks if each is not None}.values():
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
            for picks in self.picks
            if picks.container == container
            for share in picks.shares(position, self.view.usages(row), self.view)
        )
