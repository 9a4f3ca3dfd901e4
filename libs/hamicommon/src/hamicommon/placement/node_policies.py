"""Node policies that score nodes by a computation of their own, as the engine sees them.

`binpack` and `spread` go by usage, which the view knows of every node. A policy that needs more is
a package of its own behind `NodePolicy`, and `fragmentation` here is the only line that imports it
(a contract holds that). Such a policy decides about cards, too, where a pod names it as its card
policy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.cluster.cards import Cards, Floats, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.node_scores import Parts
from hamicommon.placement.predicates import Ask

FRAGMENTATION = "fragmentation"
"""Name of the node policy and of the card policy, which stands alone."""

STEP_MILLI = 30.0
"""Scores are whole steps of so many milli of a card: nodes that differ by less are equal, and the
first by name is taken. Filling nodes in a fixed order is worth more than the last milli."""


class NodeCosts(Protocol):
    """Rows of the view that take a pod, with their scores."""

    @property
    def rows(self) -> Int:
        """Rows that fit."""

    @property
    def scores(self) -> Floats:
        """Score of each of these, the highest is the best."""

    def parts(self, at: Int) -> Parts:
        """Parts that the scores at these positions are made of."""

    def grants(
        self, at: int, request: PodRequest, view: ClusterView
    ) -> tuple[ContainerGrant, ...] | None:
        """Grants of every container on the row at this position; None: walk for them."""


class NodePolicy(Protocol):
    """A policy for one view; keeps what it found out of rows until they change."""

    def nodes(
        self,
        request: PodRequest,
        view: ClusterView,
        rows: Int,
        without_cards: Collection[GpuUuid] = (),
    ) -> NodeCosts:
        """Find which of the rows take the pod, and score them."""

    def cards(self, ask: Ask, view: ClusterView, rows: Int, cards: Cards) -> Floats:
        """Score the cards of these rows for a request, by row and place; the highest is the best.

        Args:
            ask: the request, for these rows.
            view: where the rows are from.
            rows: the rows.
            cards: their cards as the container meets them.
        """

    def hosts(self, cpu_milli: int, view: ClusterView, rows: Int) -> Floats:
        """Score the rows for a pod without cards; the highest is the best."""

    def stranded_milli(self, view: ClusterView) -> float:
        """Idle cards of all nodes that no usual pod could use, in milli."""

    def defer(self) -> None:
        """Leave long computations to `pending`: decisions go by the results of before."""

    def pending(self) -> Callable[[], Callable[[], None]] | None:
        """Return a long computation that is due, or None.

        Any thread may run it; what it returns puts the result in force, in the view's own thread.
        """


def node_policy(name: str, view: ClusterView) -> NodePolicy | None:
    """Return the policy of this name; None: nodes are scored by usage."""
    return fragmentation(view) if name == FRAGMENTATION else None


def fragmentation(view: ClusterView) -> NodePolicy:
    """Return the policy `fragmentation` of this view."""
    from hamicommon.fragmentation.policy import Fragmentation

    return view.memory.kept(Fragmentation)
