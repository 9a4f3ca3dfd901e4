"""Charts of what was used."""

from __future__ import annotations

from datetime import timedelta

from hami_metrics.pages.domain.details import UsePoint
from hami_metrics.pages.views.elements.charts import memory_gib, use_chart

from tests.unit.metrics.pages.clusters import NOW


def test_gaps_of_a_chart_stay_gaps() -> None:
    def point(minutes: int, mib: float | None) -> UsePoint:
        return UsePoint(
            at=NOW - timedelta(minutes=minutes),
            device_uuid="u",
            memory_mib=mib,
            memory_most_mib=None,
            core_percent=None,
            core_most_percent=None,
        )

    chart = use_chart("m", "GiB", [point(10, 2048), point(5, None)], {"u": "card"}, memory_gib)
    assert [values for _, values in chart.rows] == [[2.0], [None]]
    assert not chart.only
    assert not chart.over_days
    days = use_chart("m", "GiB", [point(24 * 60, 2048), point(5, None)], {"u": "card"}, memory_gib)
    assert days.over_days


def test_a_chart_of_one_point_is_a_sentence() -> None:
    points = [
        UsePoint(
            at=NOW,
            device_uuid=uuid,
            memory_mib=mib,
            memory_most_mib=None,
            core_percent=None,
            core_most_percent=None,
        )
        for uuid, mib in (("u", 3072.0), ("v", None))
    ]

    chart = use_chart("m", "GiB", points, {"u": "card 0", "v": "card 1"}, memory_gib)

    assert chart.only == "card 0 3 GiB, card 1 ?"
    assert not use_chart("m", "GiB", [], {"u": "card 0"}, memory_gib).only
