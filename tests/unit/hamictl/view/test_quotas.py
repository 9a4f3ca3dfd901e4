"""Quotas with units."""

from __future__ import annotations

import pytest
from hamictl.questions import QuestionAnswer
from hamictl.view.lists import quota_records


@pytest.mark.parametrize(
    ("resource", "amount", "shown"),
    [
        ("nvidia.com/gpumem", 20480, "20 GiB"),
        ("nvidia.com/gpumem", 500, "500 MiB"),
        ("nvidia.com/gpumem", 0, "0 MiB"),
        ("iluvatar.ai/BI-V150.vMem", 1024, "1 GiB"),
        ("nvidia.com/gpucores", 200, "200 %"),
        ("cambricon.com/mlu.smlu.vcore", 50, "50 %"),
        ("example.com/tpu", 4, "4"),
        ("nvidia.com/gpumem", None, "no limit"),
    ],
)
def test_amounts_have_the_unit_of_their_resource(
    resource: str, amount: int | None, shown: str
) -> None:
    row = {"namespace": "a", "resource": resource, "limit_amount": amount, "since_at": None}
    answer = QuestionAnswer(
        question="quota",
        title="How much is left?",
        as_of="2026-11-20T14:05:00Z",
        rows=[row],
        unknown=frozenset(),
        complete=True,
    )

    found = quota_records(answer)

    assert [column.header for column in found.columns] == [
        *("NAMESPACE", "RESOURCE", "LIMIT", "SINCE")
    ]
    assert found.columns[2].show(row) == shown
