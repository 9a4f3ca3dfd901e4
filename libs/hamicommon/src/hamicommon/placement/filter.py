"""Find the candidates that can take all containers of a pod, and their cards.

All candidates are processed together (arrays of nodes x places); a node that can't take a request
drops out with its reasons. Each init container sees the node as it is now, less the sidecars
declared before it; sidecars and app containers add up (protocol 4.6). Rules are in `predicates.py`;
the cards that a request finds and takes are chosen in `choice/slices.py`.
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


class FittingNodes(NamedTuple):
    """Nodes that fit, with the grants of each container."""

    survivors: Int
    """Rows of the nodes that fit."""
    grants: list[tuple[ContainerGrant, ...]]
    """Grants per node that fits, containers in spec order."""
    steps: list[Step]
    """Steps at which other nodes were refused."""


def fit(
    request: PodRequest, view: ClusterView, rows: Int, without_cards: Collection[GpuUuid]
) -> tuple[Int, list[Step]]:
    """Return the rows that can take the whole pod, and the steps that refused the others."""
    walk = _Walk(request, view, rows, without_cards)
    walk.run(pick_last=False)
    return walk.rows, walk.steps


def fit_with_picks(
    request: PodRequest, view: ClusterView, rows: Int, without_cards: Collection[GpuUuid]
) -> FittingNodes:
    """Fit like `fit`, and return the cards that every node would give, too."""
    walk = _Walk(request, view, rows, without_cards)
    walk.run(pick_last=True)
    return FittingNodes(walk.rows, walk.grants(), walk.steps)


def fit_with_places(
    request: PodRequest, view: ClusterView, rows: Int, without_cards: Collection[GpuUuid]
) -> tuple[Int, list[Picks]]:
    """Return the rows that can take the whole pod, and what each request takes there."""
    walk = _Walk(request, view, rows, without_cards)
    walk.run(pick_last=True)
    return walk.rows, walk.picks


def ask_of(request: PodRequest, wanted: DeviceRequest, view: ClusterView, rows: Int) -> Ask:
    """Return one request of the pod, ready to be put to the cards of these rows."""
    ask = Ask.of(request, wanted, view)
    selection = ask.selection
    if selection.use_uuids:
        ask.barred = ~view.chosen(selection.use_uuids, rows)
    if selection.avoid_uuids:
        avoided = view.chosen(selection.avoid_uuids, rows)
        ask.barred = avoided if ask.barred is None else ask.barred | avoided
    return ask


class _Walk:
    """State of fitting one pod: remaining rows, their cards, and slices given so far."""

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
        """Process all requests; `pick_last` False leaves the cards of the last one open."""
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
        """Process one request on all rows; rows that can't take it are removed."""
        ask = self._prepare_ask(stock, wanted)
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

    def _prepare_ask(self, stock: Stock, wanted: DeviceRequest) -> Ask:
        ask = ask_of(self.request, wanted, self.view, self.rows)
        if self.without:
            ask.taken = self.view.marks(self.without, self.rows)
        if ask.rules.same_card:
            ask.elsewhere = self._elsewhere(stock, wanted.vendor)
        return ask

    def _elsewhere(self, stock: Stock, vendor: str) -> Bools | None:
        """Return cards other than the one that holds the vendor's earlier containers.

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
        """Keep only these rows, also in the results of earlier requests."""
        if len(kept) == len(self.rows):
            return
        self.rows = self.rows[kept]
        for picks in self.picks:
            picks.narrow(kept)
        stocks = (stock, self._now, self._together)
        for known in {id(each): each for each in stocks if each is not None}.values():
            known.narrow(kept)

    def grants(self) -> list[tuple[ContainerGrant, ...]]:
        """Return each container's grant per remaining row."""
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
