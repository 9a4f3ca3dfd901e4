"""The sentences that users see."""

from __future__ import annotations

from hami_scheduler.pod_events import found_message, refusal_messages
from hamicommon.domain.ids import NodeName as N
from hamicommon.placement.node_scores import NodeScores


def test_a_placement_in_hamis_wording() -> None:
    scores = NodeScores.of({N("gpu-b"): 0.0, N("gpu-a"): 0.0})

    assert found_message("gpu-a", scores, 2) == (
        "find fit node(gpu-a), 0 nodes not fit, 2 nodes fit(gpu-b:0.00,gpu-a:0.00)"
    )


def test_reasons_are_summed_over_nodes_and_uncounted_ones_are_not() -> None:
    reasons = {
        N("gpu-b"): "2/2 CardInsufficientMemory",
        N("gpu-a"): "4/4 CardInsufficientMemory",
        N("cpu-a"): "node unregistered",
    }

    assert list(refusal_messages(reasons, 3).values()) == [
        "2 nodes CardInsufficientMemory(gpu-a,gpu-b)",
        "no available node, 3 nodes do not meet",
    ]


def test_thousands_of_nodes_do_not_make_a_long_message() -> None:
    reasons = {N(f"node-{n:04}"): "8/8 CardInsufficientCore" for n in range(5000)}

    assert all(len(message) < 1024 for message in refusal_messages(reasons, 5000).values())
