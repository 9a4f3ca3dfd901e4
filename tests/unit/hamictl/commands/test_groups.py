"""`hamictl explain group/NAME`."""

from __future__ import annotations

from typing import Any

from hamictl.commands.answers import group_lines


def answer(**changes: Any) -> dict[str, Any]:
    return {
        "namespace": "ml",
        "group": "train",
        "quorum": 2,
        "pods": [{"pod_name": "a", "node": "n1"}, {"pod_name": "b", "node": None}],
        "summary": "1 of the 2 pods that start together exist",
        **changes,
    }


def test_a_group_that_waits_has_its_reason_and_what_it_would_take() -> None:
    took = [{"pod_name": "b", "node": "n2", "devices": ["GPU-1", "GPU-2"]}]

    lines = list(group_lines(answer(would_take=took, asked=3, waits_since_s=61.2, backs_off_s=4.0)))

    assert lines == [
        "ml/train: 2 pods, 2 start together",
        "  1 of the 2 pods that start together exist",
        "  started: a on n1",
        "  b would go to n2, GPU-1, GPU-2",
        "  decided 3 times in 61 s; tried again in 4 s",
    ]


def test_pods_that_start_one_by_one_have_no_number() -> None:
    lines = list(group_lines(answer(quorum=None, pods=[], summary="its pods start one by one")))

    assert lines == ["ml/train: 0 pods", "  its pods start one by one"]


def test_recorded_decisions_come_last() -> None:
    one = {"outcome": "refused", "summary": "7 of the 8 fit", "at": "2026-11-30T12:00:00.1Z"}
    rows = [{**one, "repeat_count": 3}, {**one, "outcome": "placed", "repeat_count": 1}]

    assert list(group_lines(answer(decisions=rows)))[-2:] == [
        "  2026-11-30T12:00:00 refused x3: 7 of the 8 fit",
        "  2026-11-30T12:00:00 placed: 7 of the 8 fit",
    ]
