"""What vendors add to the score of a node for the placement found on it (protocol sheet 4.6 f)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.requests import PodRequest, Selection
from hamicommon.placement.cards import Floats, Int
from hamicommon.placement.view import ClusterView


def wants_scores(request: PodRequest, view: ClusterView) -> bool:
    """Whether a vendor of the pod scores nodes; then every node's cards must be chosen first."""
    return any(view.rules(vendor).scorer is not None for vendor in _vendors(request))


def vendor_scores(
    request: PodRequest,
    view: ClusterView,
    rows: Int,
    grants: Sequence[tuple[ContainerGrant, ...]],
) -> Floats:
    """(rows,): the sum of what the pod's vendors say of each row's grants."""
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
        request.selections.get(vendor, Selection()),
        request.policy.node,
    )


def _vendors(request: PodRequest) -> dict[str, None]:
    """The pod's vendors, each once, in the order asked for."""
    return dict.fromkeys(
        wanted.vendor for container in request.containers for wanted in container.requests
    )
