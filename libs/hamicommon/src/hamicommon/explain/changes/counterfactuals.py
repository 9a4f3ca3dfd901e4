"""What would have made the pod fit: the engine is asked again with one thing changed.

In: a decision's `Record` with its view, and who held what then; out: `Counterfactual`s. Computed
when somebody reads. Each statement is an answer of the same engine on the very cards of the
decision, so it holds for every vendor and rule alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.changes.cluster import cluster_changes, fits
from hamicommon.explain.changes.request import request_changes
from hamicommon.explain.circumstances import Circumstances, Counterfactual
from hamicommon.placement.cluster.view import ClusterView


def counterfactuals(
    request: PodRequest,
    view: ClusterView,
    candidates: Sequence[NodeName],
    about: Circumstances,
    new_view: Callable[[], ClusterView],
) -> Iterator[Counterfactual]:
    """What would have helped a pod that was refused on these candidates, the cheapest first."""
    yield from request_changes(request, about, partial(fits, view=view, candidates=candidates))
    yield from cluster_changes(request, view, candidates, about, new_view)
