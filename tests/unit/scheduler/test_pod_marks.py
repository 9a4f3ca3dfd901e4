"""The label and the Normal events: where HAMi's tools look, and everywhere by a setting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_scheduler.pod_marks import PodMarks
from hamicommon.domain.allocations import Allocation, Origin

from tests.unit.scheduler.allocations import an_allocation

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
