"""Pages of nodes and cards: what is known of a card, and the changes next to a moment."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from hami_metrics.pages.cards import card_lines, changes, neighbours
from hami_metrics.pages.cluster import MeasuredUse

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node


def a_period(began_min: float, ended_min: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "allocation_id": f"{began_min}-{ended_min}",
        "pod_uid": "u",
        "namespace": "nlp",
        "pod_name": "p",
        "memory_mib": 1024,
        "core_percent": 10,
        "began_at": NOW - timedelta(minutes=began_min),
        "ended_at": None if ended_min is None else NOW - timedelta(minutes=ended_min),
        "state": "released",
        "reason": "",
        **changes,
    }


def test_steps_go_to_the_next_change_and_skip_none() -> None:
    moments = changes([a_period(60, 30), a_period(50, None)], ())
    at: datetime | None = NOW
    walked = []
    while at is not None:
        at, _ = neighbours(moments, at)
        walked.append(at)

    assert walked == [*reversed(moments), None]
    assert neighbours(moments, moments[0]) == (None, moments[1])


def test_a_card_that_is_not_measured_is_unknown_on_its_nodes_page() -> None:
    node = a_node("n1", a_card(0, "n1", a_holder()), a_card(1))
    use = {"GPU-n1-0": MeasuredUse(memory_mib=4096.0, core_percent=12.0, at=NOW)}

    lines = card_lines(node.cards, use, (), silent=False)

    assert [line.used_mib for line in lines] == [4096.0, None]


def test_a_card_has_a_time_of_its_state_only_where_that_was_recorded() -> None:
    cards = [a_card(0, "n1", healthy=False), a_card(1, "n1", a_holder())]
    at = NOW - timedelta(minutes=7)
    health = [
        {"at": at, "device_uuid": f"GPU-n1-{index}", "healthy": index == 1} for index in (0, 1)
    ]

    lines = card_lines(cards, {}, health, silent=False)

    assert [line.unhealthy_since for line in lines] == [at, None]
