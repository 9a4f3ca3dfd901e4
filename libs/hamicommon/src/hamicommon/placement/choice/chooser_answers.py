"""Answers of a vendor's chooser for all nodes of one request.

Nodes that are as they were when a request of the same shape was last put to them are not asked
again (`cluster/cache.py`).
"""

from __future__ import annotations

import numpy as np

from hamicommon.placement.choice.vendor_chooser import VendorChoosers
from hamicommon.placement.cluster.cards import Bools, Int
from hamicommon.placement.vendor_policy import Chosen, NotChosen


class ChooserAnswers:
    """Answers by node: positions among the rows (nodes) that are considered."""

    def __init__(self, asking: VendorChoosers) -> None:
        self.chosen: dict[int, Chosen] = {}
        """Slices on nodes for which `choose` was called."""
        self.refusals: dict[int, NotChosen] = {}
        """Reasons why nodes cannot fit the request, if the chooser decides."""
        self._asking = asking

    def decide(self, positions: Int, order: Int | None) -> Bools:
        """Return (positions,): whether these nodes can take the request.

        `order`: (positions, places), if it is known already.
        """
        rows = self._asking.rows[positions]
        changed = self._asking.view.row_versions(rows)
        answers = self._asking.answers()
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
        return fits

    def choose(self, positions: Int, order: Int) -> None:
        """Store the slices on these nodes, which must fit the request.

        Raises: ValueError when the chooser refuses one of them.
        """
        asked = [number for number, p in enumerate(positions.tolist()) if p not in self.chosen]
        for number, answer in zip(asked, self._ask(positions[asked], order[asked]), strict=True):
            if isinstance(answer, NotChosen):
                vendor = self._asking.ask.request.vendor
                raise ValueError(f"the chooser of {vendor} refused a node with room: {answer}")
            self.chosen[int(positions[number])] = answer

    def _ask(self, positions: Int, order: Int | None) -> list[Chosen | NotChosen]:
        questions = self._asking.questions(positions, order)
        answers = [self._asking.answer(question.ask) for question in questions]
        for position, answer in zip(positions.tolist(), answers, strict=True):
            if isinstance(answer, Chosen):
                self.chosen[position] = answer
        return answers
