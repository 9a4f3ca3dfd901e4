from datetime import UTC, datetime, timedelta

import pytest
from kubelocal.apiserver.output import COLUMNS, age, pod_status


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5s"), (119, "119s"), (180, "3m"), (200, "3m20s"), (7200, "120m"), (3600 * 30, "30h")],
)
def test_ages_are_short(seconds: int, text: str) -> None:
    then = datetime.now(UTC) - timedelta(seconds=seconds)
    assert age(then.isoformat()) == text


def test_an_unknown_time_is_unknown() -> None:
    assert age(None) == "<unknown>"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"phase": "Pending"}, "Pending"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        (
            {
                "phase": "Pending",
                "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
            },
            "ImagePullBackOff",
        ),
        (
            {
                "phase": "Succeeded",
                "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}],
            },
            "Completed",
        ),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 2}}}]},
            "ExitCode:2",
        ),
    ],
)
def test_a_pod_in_one_state(status: dict[str, object], state: str) -> None:
    assert pod_status({"metadata": {}, "status": status}) == state


def test_a_marked_pod_is_terminating() -> None:
    pod = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {}}
    assert pod_status(pod) == "Terminating"


def test_every_column_has_a_cell_for_an_empty_object() -> None:
    for columns in COLUMNS.values():
        for column in columns:
            column.cell({"metadata": {"name": "x"}})
