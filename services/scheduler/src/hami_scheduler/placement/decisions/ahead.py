"""The next decision, made while kube-scheduler has the answer to the last one.

A burst is mostly pods of one template, and kube-scheduler asks for one after the other: while it
takes an answer in, this process had nothing to do, and while this process chooses, kube-scheduler
waits. So after two questions that were alike the same one is decided once more. What was found
counts for that very question on the very view it was made on, and for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hamicommon import telemetry
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.choice.ordering import FRAGMENTATION
from hamicommon.placement.cluster.view import ClusterView, Frozen
from hamicommon.placement.engine import Decision, decide
from hamicommon.placement.node_scores import NodeScores
from opentelemetry.trace import get_tracer

tracer = get_tracer(__name__)


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


@dataclass(frozen=True, slots=True)
class _Made:
    question: _Question
    view: ClusterView
    version: int
    decided: Decided

    def answers(self, question: _Question, view: ClusterView) -> bool:
        """Whether it is what the engine would answer now."""
        now = self.view is view and self.version == view.version
        return now and question.is_like(self.question)


class DecisionsAhead:
    """Decides, and once more where the same question seems to come again."""

    def __init__(self, frozen: Callable[[ClusterView, NodeScores], Frozen]) -> None:
        """`frozen`: what is kept of the view for the record of a decision with these scores."""
        self._frozen = frozen
        self._last: _Question | None = None
        self._repeats = False
        self._made: _Made | None = None

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
        made, self._made = self._made, None
        if made is not None and made.answers(question, view):
            return made.decided._replace(ahead=True)
        with telemetry.current_span(tracer, "place"):
            return self._decided(question, view)

    def look_ahead(self, view: ClusterView) -> None:
        """Decides what was asked last on the view as it is now, if it was asked twice.

        Not where the choice goes by what pods usually ask for, which the view does not number.
        """
        last = self._last
        if last is None or not self._repeats or last.without_cards:
            return
        if self._made is not None and self._made.answers(last, view):
            return  # of several calls at once each looks ahead
        policy = last.request.policy
        if FRAGMENTATION in (policy.node, *policy.gpu):
            return
        self._made = _Made(last, view, view.version, self._decided(last, view))

    def _decided(self, asked: _Question, view: ClusterView) -> Decided:
        decision = decide(
            asked.request, view, candidates=asked.names, without_cards=asked.without_cards
        )
        return Decided(decision, self._frozen(view, decision.scores))
