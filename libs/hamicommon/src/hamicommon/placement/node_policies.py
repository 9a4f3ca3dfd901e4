"""Interface of node policies that compute scores themselves.

`binpack` and `spread` use the usage of every node, which the view has. A policy that needs more is
a separate package behind `NodePolicy`, and `fragmentation` here is the only line that imports it (a
contract enforces that). Such a policy also chooses cards, if a pod names it as its card policy.
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
"""Name of the node policy, and of the card policy, which can't be combined with others."""

STEP_MILLI = 30.0
"""Thousandths of a card per step of the score.

Nodes that differ by less are equal, and the first by name is taken: filling nodes in a fixed order
is worth more than the last milli.
"""


class NodeCosts(Protocol):
    """Rows that fit a pod, with their scores."""

    @property
    def rows(self) -> Int:
        """Return the rows that fit."""

    @property
    def scores(self) -> Floats:
        """Return the score of each of these rows; the highest is the best."""

    def parts(self, at: Int) -> Parts:
        """Return the parts of the scores at these positions."""

    def grants(
        self, at: int, request: PodRequest, view: ClusterView
    ) -> tuple[ContainerGrant, ...] | None:
        """Return each container's grant on the row at this position; None: compute it by a walk."""


class NodePolicy(Protocol):
    """Policy for one view; caches its results per row until the row changes."""

    def nodes(
        self,
        request: PodRequest,
        view: ClusterView,
        rows: Int,
        without_cards: Collection[GpuUuid] = (),
    ) -> NodeCosts:
        """Find the rows that fit the pod, with scores."""

    def cards(self, ask: Ask, view: ClusterView, rows: Int, cards: Cards) -> Floats:
        """Score the rows' cards for a request, by row and place; the highest is the best.

        Args:
            ask: the request, for these rows.
            view: where the rows are from.
            rows: the rows.
            cards: their cards as the container meets them.
        """

    def hosts(self, cpu_milli: int, view: ClusterView, rows: Int) -> Floats:
        """Score rows for a pod without cards; the highest is the best."""

    def stranded_milli(self, view: ClusterView) -> float:
        """Return the thousandths of all idle cards that no usual pod could use."""

    def defer(self) -> None:
        """Leave long computations to `pending`; until then decisions use the previous results."""

    def pending(self) -> Callable[[], Callable[[], None]] | None:
        """Return a long computation that is due, or None.

        Any thread may run it; the view's own thread calls its return value to apply the result.
        """


def node_policy(name: str, view: ClusterView) -> NodePolicy | None:
    """Return the policy of this name; None: nodes are scored by usage."""
    return fragmentation(view) if name == FRAGMENTATION else None


def fragmentation(view: ClusterView) -> NodePolicy:
    """Return the policy `fragmentation` of this view."""
    from hamicommon.fragmentation.policy import Fragmentation

    return view.memory.get_or_create(Fragmentation)
