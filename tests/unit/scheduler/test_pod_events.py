"""The sentences that users see."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_scheduler.pod_events import PodMarks, found_message, refusal_messages
from hamicommon.domain.allocations import Allocation, Origin
from hamicommon.domain.ids import NodeName as N
from hamicommon.placement.node_scores import NodeScores

from tests.unit.scheduler.allocations import an_allocation


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


OURS = an_allocation()
FOREIGN = an_allocation(has_agent=False)
LABEL = {"hami.io/vgpu-node": "n1"}


@pytest.mark.parametrize(
    ("marks", "allocation", "labels", "shows"),
    [
        pytest.param(PodMarks(), OURS, {}, False, id="our agent"),
        pytest.param(PodMarks(), FOREIGN, LABEL, True, id="no agent of ours"),
        pytest.param(PodMarks(), None, None, False, id="no card"),
        pytest.param(PodMarks(all_events=True), None, None, True, id="no card, all events"),
        pytest.param(PodMarks(all_events=True), OURS, {}, True, id="all events"),
        pytest.param(PodMarks(all_labels=True), OURS, LABEL, False, id="all labels"),
        pytest.param(
            PodMarks(all_labels=True),
            replace(FOREIGN, origin=Origin.ADOPTED),
            {},
            True,
            id="adopted from HAMi",
        ),
    ],
)
def test_who_is_marked(
    marks: PodMarks, allocation: Allocation | None, labels: dict[str, str] | None, shows: bool
) -> None:
    assert marks.shows_success(allocation) is shows
    if allocation is not None:
        assert marks.labels(allocation) == labels
