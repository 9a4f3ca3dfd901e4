"""Call a vendor's chooser, node by node, for requests with rules of the vendor's own.

What the pod's earlier containers took of a node's cards (`spent`) is on them when the chooser meets
them, as the container will. Its answers are kept in `chooser_answers.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection
from hamicommon.placement.choice import ordering
from hamicommon.placement.choice.picks import Picks, Shares
from hamicommon.placement.cluster.cache import Answers
from hamicommon.placement.cluster.cards import Bools, Cards, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.node_policies import node_policy
from hamicommon.placement.predicates import Ask, typed_as
from hamicommon.placement.rules import RULES, Rule
from hamicommon.placement.vendor_policy import Chosen, NodeAsk, NotChosen

_NO_CARD = int(Rule.NO_CARD)
"""Rule.NO_CARD as a plain number: comparing the enumeration's members is slow."""


class ChooserRequest(NamedTuple):
    """Request to a chooser about one node."""

    ask: NodeAsk
    places: tuple[int, ...]
    """Places of the cards in `ask.cards`."""


@dataclass(slots=True, kw_only=True)
class VendorChoosers:
    """Calls of a vendor's chooser for one request on several nodes."""

    ask: Ask
    view: ClusterView
    rows: Int
    cards: Cards
    prior: Int | None
    """(rows, places): order in which the previous container left the cards."""
    spent: Sequence[Picks]
    """Slices that earlier containers of the pod took from the same cards."""

    def order(self, positions: Int | slice) -> Int:
        """Return (positions, places): places from the least to the most preferred."""
        cards, request, policy = self.cards.take(positions), self.ask.request, self.ask.policy
        prior = None if self.prior is None else self.prior[positions]
        own = node_policy(policy.gpu[0], self.view) if len(policy.gpu) == 1 else None
        if own is not None:
            ask = self.ask.take(np.arange(len(self.rows))[positions])
            scores = own.cards(ask, self.view, self.rows[positions], cards)
        else:
            counted = typed_as(self.view.models, request.vendor)
            scores = ordering.card_scores(cards, policy.weights, request, counted)
        return ordering.order(cards, scores, policy, self._numa_first, prior)

    @property
    def _numa_first(self) -> bool:
        return self.ask.policy.numa_first or self.ask.selection.numa_bind

    def rows_that_need_it(self) -> Bools:
        """Return (rows,): whether the chooser must be called for the row (node)."""
        rules, view = self.ask.rules, self.view
        if rules.chooser is None:
            return np.zeros(len(self.rows), np.bool_)
        makeups = view.makeups(self.rows)
        applies = np.zeros(int(makeups.max(initial=0)) + 1, np.bool_)
        for makeup in np.flatnonzero(np.bincount(makeups)).tolist():
            applies[makeup] = _applies(self.ask.request, self.ask.selection, view, makeup)
        needed: Bools = applies[makeups]
        return needed

    def answers(self) -> Answers:
        """Return the cache of answers; a new one if earlier containers have taken slices."""
        if self.spent:
            return Answers(self.view.room)
        # Whatever the pod's policy about nodes is.
        policy = replace(self.ask.policy, node="")
        shape: Hashable = (self.ask.request, self.ask.selection, policy)
        return self.view.memory.answers(shape, self.view.room)

    def has_cards_left_out(self, positions: Int) -> Bools:
        """Return (positions,): whether the caller excluded cards, which prevents caching."""
        if self.ask.taken is None:
            return np.zeros(len(positions), np.bool_)
        return np.asarray(self.ask.taken[positions].any(axis=1))

    def questions(self, positions: Int, order: Int | None) -> list[ChooserRequest]:
        """Return a chooser request for each row at `positions`.

        `order` as from `order`, if known.
        """
        if not len(positions):
            return []
        walks = self.order(positions) if order is None else order
        codes = self.ask.take(positions).judge(self.cards.take(positions))
        return [
            self._question(position, walk, rules)
            for position, walk, rules in zip(
                positions.tolist(), walks[:, ::-1].tolist(), codes.tolist(), strict=True
            )
        ]

    def _question(self, position: int, walk: list[int], codes: list[int]) -> ChooserRequest:
        row = int(self.rows[position])
        usages, vendor = self.view.usages(row), self.ask.request.vendor
        places = tuple([place for place in walk if codes[place] != _NO_CARD])
        earlier = tuple(
            [
                share
                for picks in self.spent
                if picks.vendor == vendor
                for share in picks.shares(position, usages, self.view)
            ]
        )
        asked = NodeAsk(
            request=self.ask.request,
            selection=self.ask.selection,
            policies=self.ask.policy.gpu,
            cards=tuple([_add_shares(usages[place], earlier) for place in places]),
            rules=tuple([RULES[codes[place]] for place in places]),
            earlier=earlier,
            pairs=self.view.pairs(row),
        )
        return ChooserRequest(asked, places)

    def answer(self, question: NodeAsk) -> Chosen | NotChosen:
        """Return the chooser's answer to the request.

        Raises: ValueError when it gives another number of slices than was asked for.
        """
        rules, count, cards = self.ask.rules, self.ask.request.count, len(question.cards)
        if count > cards and not rules.reuses_card:
            return NotChosen(reasons={}, total=cards)
        assert rules.chooser is not None
        answer = rules.chooser(question)
        if isinstance(answer, Chosen) and len(answer.shares) != count:
            raise ValueError(
                f"the chooser of {question.request.vendor} gave {len(answer.shares)} slices, "
                f"{count} were asked for"
            )
        return answer


def asks_chooser(pod: PodRequest, view: ClusterView, rows: Int) -> bool:
    """Return whether a vendor's chooser must pick cards for the pod on any of the nodes `rows`."""
    makeups: set[int] = set()
    for container in pod.containers:
        for wanted in container.requests:
            if view.rules(wanted.vendor).chooser is None:
                continue
            makeups = makeups or set(view.makeups(rows).tolist())
            selection = pod.selection_of(wanted.vendor)
            if any(_applies(wanted, selection, view, makeup) for makeup in makeups):
                return True
    return False


def _applies(wanted: DeviceRequest, selection: Selection, view: ClusterView, makeup: int) -> bool:
    """Return whether the vendor's chooser must be called on nodes with these models."""
    mine = [model for model in view.models_of(makeup) if model.vendor == wanted.vendor]
    return bool(mine) and view.rules(wanted.vendor).applies(wanted, selection, mine)


def _add_shares(usage: DeviceUsage, earlier: Shares) -> DeviceUsage:
    """Return the card with the slices that earlier containers took added."""
    if not earlier:
        return usage
    mine = [share for share in earlier if share.uuid == usage.device.uuid]
    if not mine:
        return usage
    details: list[Mapping[str, Any]] = [share.detail for share in mine if share.detail]
    return replace(
        usage,
        used_slots=usage.used_slots + sum(share.slots for share in mine),
        used_memory_mib=usage.used_memory_mib + sum(share.memory_mib for share in mine),
        used_core_percent=usage.used_core_percent + sum(share.core_percent for share in mine),
        holdings=(*usage.holdings, *details),
    )
