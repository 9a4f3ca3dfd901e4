"""Score nodes for a pod without cards, by the cards that its CPU would strand (make unusable).

The node policy `fragmentation` for pods that are not ours to place: kube-scheduler asks for scores
and adds them to its own. `hamictl replay` places such pods by the same costs.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hamicommon.domain.ids import NodeName
from hamicommon.placement.cluster.cards import Floats, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import TOP_PRIORITY
from hamicommon.placement.node_policies import STEP_MILLI, fragmentation

EXTENDER_WEIGHT = 5
"""Weight of these scores in our kube-scheduler configurations.

One step is then half of the whole range of a plugin (docs/packing.md, "Pods without cards").
"""
_BEST_WITH_CARDS = TOP_PRIORITY - 1


def host_costs(cpu_milli: int, view: ClusterView, rows: Int) -> Floats:
    """Return each row's score: minus what the pod would strand, in whole steps."""
    return fragmentation(view).hosts(cpu_milli, view, rows)


def host_levels(costs: Floats) -> Int:
    """Convert scores of nodes with cards to levels: 9 for the best, one less per step.

    Nine steps are kept apart; a node that strands more than that is the last choice as it is.
    """
    if not len(costs):
        return np.zeros(0, np.int64)
    steps = np.rint((costs.max() - costs) / STEP_MILLI).astype(np.int64)
    levels: Int = np.maximum(_BEST_WITH_CARDS - steps, 0)
    return levels


def host_scores(
    cpu_milli: int, view: ClusterView, candidates: Collection[NodeName]
) -> dict[NodeName, int]:
    """Score candidates 0 to 10 for a pod that asks for `cpu_milli`; 10 is the most preferred.

    A node without a card that we know of gets 10: nothing is lost there. Where a node's free CPU
    is not known, nothing is known to be lost on it either: it gets the best of a node with cards.
    """
    # As a tuple they would take the place of those that /filter is offered repeatedly.
    rows, without_cards = view.rows_of(list(candidates))
    scores = dict.fromkeys(without_cards, TOP_PRIORITY)
    levels = host_levels(host_costs(cpu_milli, view, rows))
    scores.update(zip(view.names(rows), levels.tolist(), strict=True))
    return scores
