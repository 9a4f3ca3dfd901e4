"""What a vendor's chooser answered for the nodes of one request.

Nodes that are as they were when a request of the same shape was last put to them are not asked
again (`cluster/cache.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hamicommon.placement.choice.vendor_chooser import ChooserRequest, VendorChoosers
from hamicommon.placement.cluster.cache import UNKNOWN, Answers
from hamicommon.placement.cluster.cards import Bools, Codes, Int
from hamicommon.placement.rules import RULES
from hamicommon.placement.vendor_policy import Chosen, NotChosen


class ChooserAnswers:
    """Answers by position in the rows of the walk."""

    def __init__(self, asking: VendorChoosers) -> None:
        self.chosen: dict[int, Chosen] = {}
        """What nodes give, where it was asked for."""
        self.refusals: dict[int, NotChosen] = {}
        """Why nodes don't take the request, where the chooser decides."""
        self._asking = asking
        self._questions: dict[int, ChooserRequest] = {}
        self._decided = np.zeros(len(asking.rows), np.bool_)
        self._answers: Answers | None = None

    def decide(self, positions: Int, order: Int | None) -> Bools:
        """(positions,): whether these nodes take the request.

        `order`: (positions, places), if it is known already.
        """
        rows = self._asking.rows[positions]
        changed = self._asking.view.changed(rows)
        answers = self._answers = self._asking.answers()
        special = self._asking.has_cards_left_out(positions)
        fresh = np.flatnonzero(special | answers.stale(rows, changed))
        fresh_answers = self._ask(positions[fresh], None if order is None else order[fresh])
        refusals = [answer if isinstance(answer, NotChosen) else None for answer in fresh_answers]
        answers.put(rows[fresh], changed[fresh], refusals)
        fits: Bools = answers.fits[rows]
        refused = np.flatnonzero(~fits)
        self.refusals.update(
            zip(positions[refused].tolist(), answers.refusals[rows[refused]].tolist(), strict=True)
        )
        answers.forget(rows[special])
        self._decided[positions] = True
        return fits

    def choose(self, positions: Int, order: Int) -> None:
        """Fills in what these nodes give; they must take the request.

        Raises: ValueError when the chooser refuses one of them.
        """
        asked = [number for number, p in enumerate(positions.tolist()) if p not in self.chosen]
        for number, answer in zip(asked, self._ask(positions[asked], order[asked]), strict=True):
            if isinstance(answer, NotChosen):
                vendor = self._asking.ask.request.vendor
                raise ValueError(f"the chooser of {vendor} refused a node with room: {answer}")
            self.chosen[int(positions[number])] = answer

    def decided(self, positions: Int) -> Bools:
        """(positions,): whether the chooser decided about these nodes."""
        answer: Bools = self._decided[positions]
        return answer

    def fit_when_idle(self, positions: Int, codes: Codes) -> list[bool]:
        """Whether nodes that were decided about would take it with nothing on their cards.

        `codes`: (positions, places), the rules of the nodes' cards when they are idle.
        """
        assert self._answers is not None
        rows = self._asking.rows[positions]
        special = self._asking.has_cards_left_out(positions)
        known = np.where(special, UNKNOWN, self._answers.idle[rows])
        unknown = np.flatnonzero(known == UNKNOWN)
        known[unknown] = [
            self._fits_when_idle(int(position), mine)
            for position, mine in zip(positions[unknown], codes[unknown].tolist(), strict=True)
        ]
        self._answers.idle[rows] = np.where(special, UNKNOWN, known)
        return [bool(fits) for fits in known.tolist()]

    def _fits_when_idle(self, position: int, codes: Sequence[int]) -> bool:
        question = self._questions.get(position)
        if question is None:
            [question] = self._asking.questions(np.array([position]), None)
        idle = replace(
            question.ask,
            cards=tuple(
                [
                    replace(
                        usage, used_slots=0, used_memory_mib=0, used_core_percent=0, holdings=()
                    )
                    for usage in question.ask.cards
                ]
            ),
            rules=tuple([RULES[codes[place]] for place in question.places]),
        )
        return isinstance(self._asking.answer(idle), Chosen)

    def _ask(self, positions: Int, order: Int | None) -> list[Chosen | NotChosen]:
        questions = self._asking.questions(positions, order)
        self._questions.update(zip(positions.tolist(), questions, strict=True))
        answers = [self._asking.answer(question.ask) for question in questions]
        for position, answer in zip(positions.tolist(), answers, strict=True):
            if isinstance(answer, Chosen):
                self.chosen[position] = answer
        return answers
