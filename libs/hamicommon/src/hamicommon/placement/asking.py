"""Puts a request to a vendor's chooser, node by node, where its choice is wanted.

`Spent` is what the pod's earlier containers took of a node's cards; with it the chooser meets the
cards as the container will.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import Selection
from hamicommon.placement.cards import Bools, Cards, Codes, Int
from hamicommon.placement.judging import Ask
from hamicommon.placement.picks import Picks, Shares
from hamicommon.placement.rules import RULES, Rule
from hamicommon.placement.vendor_rules import Chosen, NodeAsk, NotChosen
from hamicommon.placement.view import ClusterView


_NO_CARD = int(Rule.NO_CARD)
"""As plain number: comparing with the enumeration is what asking a large cluster spent most on."""


@dataclass(slots=True)
class Asked:
    """The rows whose chooser was asked, by position, with what it was asked and what it said."""

    questions: dict[int, tuple[NodeAsk, tuple[int, ...]]] = field(default_factory=dict)
    """With the places of `NodeAsk.cards`."""
    answers: dict[int, Chosen | NotChosen] = field(default_factory=dict)

    def fits_when_idle(self, position: int, codes: Codes, ask: Ask) -> bool:
        """Whether the node would take the request with nothing granted on its cards.

        `codes`: (places,), the rules of the node's cards when they are idle.
        """
        question, places = self.questions[position]
        assert ask.rules.chooser is not None
        idle = replace(
            question,
            cards=tuple(
                replace(usage, used_slots=0, used_memory_mib=0, used_core_percent=0, holdings=())
                for usage in question.cards
            ),
            rules=tuple([RULES[code] for code in codes[list(places)].tolist()]),
        )
        return isinstance(ask.rules.chooser(idle), Chosen)


@dataclass(slots=True, kw_only=True)
class Asking:
    """Asks the chooser of one request about nodes of the walk."""

    ask: Ask
    selection: Selection
    policies: tuple[str, ...]
    view: ClusterView
    rows: Int
    cards: Cards
    spent: Sequence[Picks]
    """By the pod's earlier containers, on the same cards."""

    def rows_that_need_it(self) -> Bools:
        """(rows,): where the vendor wants the chooser asked."""
        rules, view = self.ask.rules, self.view
        if rules.chooser is None:
            return np.zeros(len(self.rows), np.bool_)
        makeups = view.makeups(self.rows)
        applies = np.zeros(int(makeups.max(initial=0)) + 1, np.bool_)
        for makeup in np.flatnonzero(np.bincount(makeups)).tolist():
            mine = [m for m in view.models_of(makeup) if m.vendor == self.ask.request.vendor]
            applies[makeup] = bool(mine) and rules.applies(self.ask.request, self.selection, mine)
        needed: Bools = applies[makeups]
        return needed

    def ask_all(self, positions: Int, order: Int, into: Asked) -> None:
        """Asks about the rows at `positions`; `order` has one row per position."""
        if not len(positions):
            return
        codes = self.ask.take(positions).judge(self.cards.take(positions)).tolist()
        walks = order[:, ::-1].tolist()
        for position, walk, rules in zip(positions.tolist(), walks, codes, strict=True):
            places = tuple([place for place in walk if rules[place] != _NO_CARD])
            question = self._question(position, places, rules)
            into.questions[position] = (question, places)
            into.answers[position] = self._answer(question, len(places))

    def _answer(self, question: NodeAsk, cards: int) -> Chosen | NotChosen:
        rules, count = self.ask.rules, self.ask.request.count
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

    def _question(self, position: int, places: tuple[int, ...], codes: Sequence[int]) -> NodeAsk:
        row = int(self.rows[position])
        usages, vendor = self.view.usages(row), self.ask.request.vendor
        earlier = tuple(
            share
            for picks in self.spent
            if picks.vendor == vendor
            for share in picks.shares(position, usages, self.view)
        )
        return NodeAsk(
            request=self.ask.request,
            selection=self.selection,
            policies=self.policies,
            cards=tuple([_met(usages[place], earlier) for place in places]),
            rules=tuple([RULES[codes[place]] for place in places]),
            earlier=earlier,
            pairs=self.view.pairs(row),
        )


def _met(usage: DeviceUsage, earlier: Shares) -> DeviceUsage:
    """The card with the slices that earlier containers took of it."""
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


def place_of(uuid: GpuUuid, uuids: Sequence[GpuUuid]) -> int:
    """Where a chosen card is.

    Raises: ValueError when the chooser named a card that the node has not.
    """
    return uuids.index(uuid)
