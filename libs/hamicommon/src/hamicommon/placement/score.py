"""Add vendors' amounts to the scores of nodes (protocol 4.6 f)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.cluster.cards import Floats, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.filter import fit_with_picks
from hamicommon.placement.walks.walked import shape_key


def wants_scores(request: PodRequest, view: ClusterView) -> bool:
    """Return whether a vendor of the pod adds to scores, for which cards must be chosen first."""
    return any(view.rules(vendor).scorer is not None for vendor in _vendors(request))


def own_scores(
    request: PodRequest, view: ClusterView, rows: Int, without_cards: Collection[GpuUuid]
) -> Floats:
    """Return (rows,): what vendors add for the cards that each row gives; all rows must fit.

    Rows that are as they were when a pod of the same shape came are not asked again.
    """
    known, changed = view.memory.scores(shape_key(request), view.room), view.row_versions(rows)
    left_out = view.marks(without_cards, rows).any(axis=1)
    fresh = np.flatnonzero(left_out | known.stale(rows, changed))
    if len(fresh):
        fitted = fit_with_picks(request, view, rows[fresh], without_cards)
        added = vendor_scores(request, view, fitted.survivors, fitted.grants)
        known.put(rows[fresh], changed[fresh], added)
    scores: Floats = known.scores[rows]
    known.forget(rows[left_out])
    return scores


def vendor_scores(
    request: PodRequest,
    view: ClusterView,
    rows: Int,
    grants: Sequence[tuple[ContainerGrant, ...]],
) -> Floats:
    """Return (rows,): the sum of what the pod's vendors add for each row's grants."""
    return np.array(
        [
            sum(
                _score(request, view, row, containers, vendor)
                for vendor in _vendors(request)
                if view.rules(vendor).scorer is not None
            )
            for row, containers in zip(rows.tolist(), grants, strict=True)
        ],
        np.float32,
    )


def _score(
    request: PodRequest,
    view: ClusterView,
    row: int,
    containers: Sequence[ContainerGrant],
    vendor: str,
) -> float:
    rules, usages = view.rules(vendor), view.usages(row)
    assert rules.scorer is not None
    own = [usage for usage in usages if usage.device.vendor == vendor]
    if rules.scores_alone and len(own) < len(usages):
        return 0.0
    return rules.scorer(
        own,
        [
            [share for share in container.shares if share.vendor == vendor]
            for container in containers
        ],
        request.selection_of(vendor),
        request.policy.node,
    )


def _vendors(request: PodRequest) -> dict[str, None]:
    """Return the pod's vendors, each once, in the order requested."""
    return dict.fromkeys(
        wanted.vendor for container in request.containers for wanted in container.requests
    )
