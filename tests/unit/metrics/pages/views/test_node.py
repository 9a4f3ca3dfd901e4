"""The page of a node: its cards, what is known of each, and since when."""

from __future__ import annotations

from datetime import timedelta

from hami_metrics.pages.domain.details import HealthEvent, LatestUse
from hami_metrics.pages.views.node import node_page

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node


def test_a_card_that_nobody_measures_is_unknown_on_its_nodes_page() -> None:
    node = a_node("n1", a_card(0, "n1", a_holder()), a_card(1))
    latest = [
        LatestUse(
            at=NOW,
            device_uuid="GPU-n1-0",
            pod_uid="",
            container="",
            memory_mib=4096.0,
            memory_limit_mib=None,
            core_percent=12.0,
        )
    ]
    page = node_page(node, latest=latest, series=(), health=(), drift=(), now=NOW, past=False)

    assert [(line.granted, line.used) for line in page.lines] == [(10, 5), (0, None)]
    assert all(chart.empty for chart in page.charts)


def test_a_card_has_a_time_of_its_state_only_where_that_was_recorded() -> None:
    node = a_node("n1", a_card(0, "n1", healthy=False), a_card(1, "n1", a_holder()))
    health = [
        HealthEvent(
            at=NOW - timedelta(minutes=7),
            node="n1",
            device_uuid=f"GPU-n1-{index}",
            healthy=index == 1,
            reason="",
        )
        for index in (0, 1)
    ]

    page = node_page(node, latest=(), series=(), health=health, drift=(), now=NOW, past=False)

    assert [line.unhealthy_since for line in page.lines] == [NOW - timedelta(minutes=7), None]
