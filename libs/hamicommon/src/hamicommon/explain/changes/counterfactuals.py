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
from hamicommon.explain.changes.cluster import SearchTimeout, Trials, cluster_changes
from hamicommon.explain.changes.request import request_changes
from hamicommon.explain.circumstances import Circumstances, Counterfactual
from hamicommon.placement.cluster.view import ClusterView

SEARCH_BUDGET_S = 2.0
"""For one reader's question; most searches take some milliseconds."""


def counterfactuals(
    request: PodRequest,
    view: ClusterView,
    candidates: Sequence[NodeName],
    about: Circumstances,
    new_view: Callable[[], ClusterView],
    *,
    budget_s: float = SEARCH_BUDGET_S,
) -> Iterator[Counterfactual]:
    """Find what would have helped a pod that was refused on these candidates, cheapest first.

    Where the search takes longer than `budget_s`, the last one is of the kind `unfinished`.
    """
    trials = Trials(budget_s)
    try:
        fits = partial(trials.fits, view=view, candidates=candidates)
        yield from request_changes(request, about, fits)
        yield from cluster_changes(request, view, candidates, about, new_view, trials)
    except SearchTimeout:
        text = f"not everything was tried: the search ended after {budget_s:g} s"
        yield Counterfactual(kind="unfinished", text=text)
