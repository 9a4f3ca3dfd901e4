"""Public functions of the engine: choose node and cards for a pod.

In: a `PodRequest` and the `ClusterView`; out: a `Placement`, or a `Refusal` with the reason for
every candidate. Pure and deterministic: the same request and view give the same answer. Nodes are
chosen by their usage before the placement (binpack: fullest, spread: emptiest) or by a policy that
scores them itself (`node_policies.py`); of equal nodes the first by name. `filter.py` does the walk
over the containers. The scheduler then reserves.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import InvalidRequest
from hamicommon.placement.cluster.cards import Floats, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.filter import fit, fit_with_picks
from hamicommon.placement.node_policies import NodeCosts, node_policy
from hamicommon.placement.node_scores import MAX_PARTS, NodeScores
from hamicommon.placement.score import own_scores, vendor_scores, wants_scores
from hamicommon.placement.unschedulable import Refusal, Step, refusal_of
from hamicommon.placement.walks.walked import KeptWalks, WalkedShape

TOP_PRIORITY = 10
"""Highest score that an extender may give (kube-scheduler's MaxExtenderPriority)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Result of a decision: `placement` or `refusal`, and the scores of nodes that fit."""

    placement: Placement | None
    refusal: Refusal | None
    scores: NodeScores
    """Usage scores of nodes that fit, from the least to the most preferred."""
    view_version: int


class Feasible(NamedTuple):
    """Nodes that fit with their placements, and the reasons of the others."""

    placements: dict[NodeName, Placement]
    """Placements from the least to the most preferred node."""
    refusal: Refusal
    scores: NodeScores


def place(
    request: PodRequest,
    view: ClusterView,
    *,
    candidates: Collection[NodeName] | None = None,
    without_cards: Collection[GpuUuid] = (),
) -> Placement | Refusal:
    """Return the best placement on the candidates (None: all nodes), or why there is none.

    `without_cards` are left out of consideration: cards that were just lost to another pod.

    Raises: InvalidRequest when the pod asks for no card.
    """
    decision = decide(request, view, candidates=candidates, without_cards=without_cards)
    answer = decision.placement or decision.refusal
    assert answer is not None
    return answer


def decide(
    request: PodRequest,
    view: ClusterView,
    *,
    candidates: Collection[NodeName] | None = None,
    without_cards: Collection[GpuUuid] = (),
) -> Decision:
    """Decide like `place`, and return the scores of all nodes that fit, too."""
    _check(request)
    rows, unknown = view.rows_of(candidates)
    judged = _judge(request, view, rows, without_cards)
    survivors, scores = judged.rows, judged.scores
    if not len(survivors):
        return Decision(
            placement=None,
            refusal=refusal_of(view, judged.steps(), unknown),
            scores=NodeScores.of({}),
            view_version=view.version,
        )
    ranked = _rank(view, survivors, scores, request.policy.node)
    return Decision(
        placement=judged.placement(int(ranked[-1])),
        refusal=None,
        scores=_scores(view, survivors, scores, ranked, judged.costs),
        view_version=view.version,
    )


def feasible(
    request: PodRequest, view: ClusterView, candidates: Collection[NodeName] | None = None
) -> Feasible:
    """Return the placement on each candidate that fits, and the reasons of the others.

    Raises: InvalidRequest when the pod asks for no card.
    """
    _check(request)
    rows, unknown = view.rows_of(candidates)
    found = fit_with_picks(request, view, rows, ())
    policy = node_policy(request.policy.node, view)
    costs = None if policy is None else policy.nodes(request, view, found.survivors)
    scores = view.scores(found.survivors) if costs is None else costs.scores
    if wants_scores(request, view):
        scores = scores + vendor_scores(request, view, found.survivors, found.grants)
    placements = {}
    ranked = _rank(view, found.survivors, scores, request.policy.node)
    for position in ranked.tolist():
        name = view.name(int(found.survivors[position]))
        placements[name] = Placement(
            node=name, containers=found.grants[position], score=float(scores[position])
        )
    return Feasible(
        placements,
        refusal_of(view, found.steps, unknown),
        _scores(view, found.survivors, scores, ranked, costs),
    )


def best_of(request: PodRequest, view: ClusterView, rows: Int) -> Placement | None:
    """Place a pod on one of these rows, without reasons for a refusal (replay).

    Raises: InvalidRequest when the pod asks for no card.
    """
    _check(request)
    judged = _judge(request, view, rows, ())
    if not len(judged.rows):
        return None
    liked = -judged.scores if request.policy.node == "spread" else judged.scores
    equal = np.flatnonzero(liked == liked.max())
    return judged.placement(int(equal[view.ranks(judged.rows[equal]).argmin()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredCandidates:
    """Candidates that fit, with their scores."""

    request: PodRequest
    view: ClusterView
    candidates: Int
    without_cards: Collection[GpuUuid]
    rows: Int
    scores: Floats
    dropped: list[Step] | None = None
    costs: NodeCosts | None = None
    """Costs of nodes, if the policy computes scores itself."""
    walked: WalkedShape | None = None
    """Cached walks of the rows, otherwise."""

    def steps(self) -> list[Step]:
        """Return the steps at which other candidates were refused."""
        if self.dropped is not None:
            return self.dropped
        return fit(self.request, self.view, self.candidates, self.without_cards)[1]

    def placement(self, at: int) -> Placement:
        """Return the placement on the row at this position."""
        row, containers = self.rows[at : at + 1], None
        if self.costs is not None:
            containers = self.costs.grants(at, self.request, self.view)
        elif self.walked is not None:
            containers = self.walked.grants(int(row[0]), self.request, self.view)
        if containers is None:
            fitted = fit_with_picks(self.request, self.view, row, self.without_cards)
            containers = fitted.grants[0]
        name = self.view.name(int(row[0]))
        return Placement(node=name, containers=containers, score=float(self.scores[at]))


def _judge(
    request: PodRequest, view: ClusterView, rows: Int, without_cards: Collection[GpuUuid]
) -> _ScoredCandidates:
    costs = walked = steps = None
    policy = node_policy(request.policy.node, view)
    if policy is not None:
        costs = policy.nodes(request, view, rows, without_cards)
        survivors, scores = costs.rows, costs.scores
    else:
        kept = view.memory.get_or_create(KeptWalks)
        walked = None if without_cards else kept.of(request, view, rows)
        if walked is None:
            survivors, steps = fit(request, view, rows, without_cards)
        else:
            survivors = rows[walked.fits[rows]]
        scores = view.scores(survivors)
    if len(survivors) and wants_scores(request, view):
        scores = scores + own_scores(request, view, survivors, without_cards)
    return _ScoredCandidates(
        request=request,
        view=view,
        candidates=rows,
        without_cards=without_cards,
        rows=survivors,
        scores=scores,
        dropped=steps,
        costs=costs,
        walked=walked,
    )


def _rank(view: ClusterView, rows: Int, scores: Floats, policy: str) -> Int:
    """Return positions in `rows` from the least to the most preferred; names break ties."""
    keys = (-view.ranks(rows), -scores if policy == "spread" else scores)
    return np.lexsort(keys)


def _scores(
    view: ClusterView,
    rows: Int,
    scores: Floats,
    ranked: Int,
    costs: NodeCosts | None,
) -> NodeScores:
    parts = None if costs is None else costs.parts(ranked[-MAX_PARTS:])
    return NodeScores(view.names_by_row(), rows[ranked], scores[ranked], parts)


def _check(request: PodRequest) -> None:
    if not request.wants_devices:
        raise InvalidRequest(f"pod {request.namespace}/{request.name} asks for no card")
