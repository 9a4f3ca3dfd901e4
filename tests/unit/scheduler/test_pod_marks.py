"""The label and the Normal events: where HAMi's tools look, and everywhere by a setting."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hami_scheduler.pod_marks import PodMarks
from hamicommon.domain.allocations import Allocation, AllocationState, Origin
from hamicommon.domain.ids import AllocationId, NodeName, PodUid

OURS = Allocation(
    id=AllocationId("id"),
    pod_uid=PodUid("uid"),
    namespace="default",
    pod_name="p",
    attempt=1,
    node=NodeName("n"),
    state=AllocationState.BOUND,
    containers=(),
    token=1,
    reserved_at=datetime(2026, 1, 1, tzinfo=UTC),
)
FOREIGN = replace(OURS, has_agent=False)
LABEL = {"hami.io/vgpu-node": "n"}


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
