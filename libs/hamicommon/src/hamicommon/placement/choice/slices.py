"""Find the nodes that fit one request, and the slices on them.

Whether a node fits is counted on arrays (`predicates.py`), or asked of the vendor's chooser where
that decides (`vendor_chooser.py`, `chooser_answers.py`). Which cards are taken is asked only where
it is wanted; the standard choices are in `selection.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hamicommon.placement.choice import selection as picking
from hamicommon.placement.choice.chooser_answers import ChooserAnswers
from hamicommon.placement.choice.picks import Picks
from hamicommon.placement.choice.vendor_chooser import VendorChoosers
from hamicommon.placement.cluster.cards import Bools, Cards, Int


@dataclass(slots=True)
class Stock:
    """Cards as a container sees them, in the order in which the previous container left them."""

    cards: Cards
    order: Int | None = None
    spent: list[Picks] = field(default_factory=list)

    def narrow(self, kept: Int) -> None:
        """Keep only the given rows."""
        self.cards = self.cards.take(kept)
        if self.order is not None:
            self.order = self.order[kept]


class Choice:
    """Fit of one request on every row (node), and the slices there."""

    def __init__(
        self,
        asking: VendorChoosers,
        *,
        pick: bool,
    ) -> None:
        self._asking = asking
        self.asked = ChooserAnswers(asking)
        self.order: Int | None = None
        """Places from the least to the most preferred, (rows, places)."""
        self._walk: picking.NumaWalk | None = None
        ask, cards, selection = asking.ask, asking.cards, asking.ask.selection
        if pick or selection.numa_bind:
            self.order = asking.order(slice(None))
        self._fitting = ask.fits(cards)
        self.found: Int = self._fitting.sum(axis=1)
        """Number of cards that fit, (rows,); with NUMA binding only those of one group."""
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
            positions = np.flatnonzero(self._special)
            order = None if self.order is None else self.order[positions]
            self.fits[positions] = self.asked.decide(positions, order)

    @property
    def dropped(self) -> Int | None:
        """Return (rows,): picks dropped by NUMA grouping."""
        return None if self._walk is None else self._walk.dropped

    @property
    def largest_group(self) -> Int | None:
        """Return (rows,): picks in the largest NUMA group; None if cards are not grouped."""
        return None if self._walk is None else self._walk.largest

    @property
    def _by_topology(self) -> bool:
        return "topology-aware" in self._asking.ask.policy.gpu

    def picks(self, kept: Int, container: int) -> Picks:
        """Return the picks on the rows `kept`."""
        assert self.order is not None
        count, view = self._asking.ask.request.count, self._asking.view
        if not self._special[kept].any():
            return self._standard(self._places(kept, count), kept, container)
        special = kept[self._special[kept]]
        self.asked.choose(special, self.order[special])
        chosen = [self.asked.chosen.get(position) for position in kept.tolist()]
        standard = np.array([answer is None for answer in chosen])
        places = np.zeros((len(kept), count), np.int64)
        if standard.any():
            places[standard] = self._places(kept[standard], count)
        picks = self._standard(places, kept, container)
        picks.chosen = chosen
        for number, answer in enumerate(chosen):
            if answer is not None:
                uuids = view.uuids(int(self._asking.rows[kept[number]]))
                picks.places[number] = [uuids.index(share.uuid) for share in answer.shares]
                picks.memory[number] = [share.memory_mib for share in answer.shares]
                picks.core[number] = [share.core_percent for share in answer.shares]
                picks.slots[number] = [share.slots for share in answer.shares]
        return picks

    def _standard(self, places: Int, kept: Int, container: int) -> Picks:
        """Return slices on these places, each of the size that the vendor's `need` returns."""
        ask, cards = self._asking.ask, self._asking.cards

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
        """Return (kept, count): places on rows that need no chooser."""
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
