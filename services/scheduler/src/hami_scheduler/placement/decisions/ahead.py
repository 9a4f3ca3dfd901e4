"""The next decisions, made while kube-scheduler has the answer to the last one.

A burst is mostly pods of one template, and kube-scheduler asks for one after the other: while it
takes an answer in, this process had nothing to do, and while this process chooses, kube-scheduler
waits. So after two questions that were alike the same one is decided again, and again as if the
pods before had been counted: one after the other costs a third of each by itself, because nothing
else runs between. What was found counts for that very question on the very view that it was made
for, and for no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hamicommon import telemetry
from hamicommon.domain.allocations import Footprint, Placement, footprints
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.choice.ordering import FRAGMENTATION
from hamicommon.placement.cluster.view import ClusterView, Frozen
from hamicommon.placement.engine import Decision, decide
from hamicommon.placement.node_scores import NodeScores
from opentelemetry.trace import get_tracer

tracer = get_tracer(__name__)

MOST = 8
"""Decisions made at once; while they are, nobody else is answered (1 ms at 100 nodes)."""


class Decided(NamedTuple):
    """A decision, and what it was made on, for its record."""

    decision: Decision
    frozen: Frozen
    ahead: bool = False
    """It was made before it was asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    request: PodRequest
    names: Sequence[NodeName]
    without_cards: frozenset[GpuUuid]

    def is_like(self, other: _Question | None) -> bool:
        """Whether both have one answer: all but the pod's names is equal.

        Of the nodes offered it is enough to look whether they are the same tuple, as they are while
        kube-scheduler offers the same ones.
        """
        if other is None or self.names is not other.names:
            return False
        mine, theirs = self.request, other.request
        return (
            mine.containers == theirs.containers
            and mine.policy == theirs.policy
            and mine.selections == theirs.selections
            and mine.host == theirs.host
            and self.without_cards == other.without_cards
        )


@dataclass(slots=True)
class _Plan:
    """Decisions of one question, each as if the pods before it were counted in the view."""

    question: _Question
    view: ClusterView
    version: int
    """Of the view that the first of `rest` is for."""
    rest: deque[Decided]
    given: Placement | None = None
    """Of the last one that was handed out and is not counted yet."""

    def is_for(self, view: ClusterView) -> bool:
        """Whether the first of the rest is what the engine would answer now."""
        counted = self.given is None
        return counted and bool(self.rest) and self.view is view and self.version == view.version


class DecisionsAhead:
    """Decides, and again where the same question seems to come again."""

    def __init__(self, frozen: Callable[[ClusterView, NodeScores], Frozen]) -> None:
        """`frozen`: what is kept of the view for the record of a decision with these scores."""
        self._frozen = frozen
        self._last: _Question | None = None
        self._repeats = False
        self._plan: _Plan | None = None
        self._length = 1
        """Of the next plan: twice the last one's where all of it was of use and counted early."""

    def decide(
        self,
        request: PodRequest,
        view: ClusterView,
        names: Sequence[NodeName],
        without_cards: Collection[GpuUuid],
    ) -> Decided:
        """As `engine.decide` answers now. Raises: InvalidRequest."""
        question = _Question(request, names, frozenset(without_cards))
        self._repeats = question.is_like(self._last)
        self._last = question
        plan = self._plan
        if plan is not None and plan.is_for(view) and question.is_like(plan.question):
            return self._hand_out(plan)
        self._drop_plan()
        with telemetry.current_span(tracer, "place"):
            return self._decided(question, view)

    def counted(self, placement: Placement, *, before: int, view: ClusterView) -> None:
        """The placement counts in the view from now on; `before`: the view's version without it.

        What follows in the plan was decided as if it did, so it holds on if nothing else changed.
        """
        plan = self._plan
        if plan is None:
            return
        given, plan.given = plan.given, None
        if given is placement and plan.version == before:
            plan.version = view.version
            if not plan.rest:
                self._length = min(2 * self._length, MOST)

    def look_ahead(self, view: ClusterView) -> None:
        """Decides what was asked last on the view as it is now, if it was asked twice.

        Not where the choice goes by what pods usually ask for, which the view does not number.
        """
        last = self._last
        if last is None or not self._repeats or last.without_cards:
            return
        plan = self._plan
        if plan is not None and plan.is_for(view) and last.is_like(plan.question):
            return  # of several calls at once each looks ahead
        policy = last.request.policy
        if FRAGMENTATION in (policy.node, *policy.gpu):
            return
        self._drop_plan()
        decisions = self._in_a_row(last, view)
        self._plan = _Plan(last, view, view.version, decisions)

    def _hand_out(self, plan: _Plan) -> Decided:
        found = plan.rest.popleft()
        plan.given = found.decision.placement
        return Decided(
            replace(found.decision, view_version=plan.version),
            found.frozen._replace(version=plan.version),
            ahead=True,
        )

    def _drop_plan(self) -> None:
        if self._plan is not None and self._plan.rest:
            self._length = 1
        self._plan = None

    def _in_a_row(self, question: _Question, view: ClusterView) -> deque[Decided]:
        """Some decisions, each with those before it counted; the view is left as it was."""
        decisions = deque([self._decided(question, view)])
        taken: list[Footprint] = []
        try:
            while len(decisions) < self._length:
                placement = decisions[-1].decision.placement
                cards = () if placement is None else footprints(placement.containers)
                if len(cards) != 1:
                    break  # it is not counted before it is written
                _shift(view, cards[0], 1)
                taken += cards
                following = self._decided(question, view)
                if following.decision.placement is None:
                    break  # a refusal is to be made on the view itself
                decisions.append(following)
        finally:
            for card in reversed(taken):
                _shift(view, card, -1)
        return decisions

    def _decided(self, asked: _Question, view: ClusterView) -> Decided:
        decision = decide(
            asked.request, view, candidates=asked.names, without_cards=asked.without_cards
        )
        return Decided(decision, self._frozen(view, decision.scores))


def _shift(view: ClusterView, card: Footprint, sign: int) -> None:
    view.shift(
        card.uuid,
        slots=sign * card.slots,
        memory_mib=sign * card.memory_mib,
        core_percent=sign * card.core_percent,
    )
