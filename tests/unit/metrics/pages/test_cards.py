"""Pages of nodes and cards: what is known of a card, who held it when, as a picture and by step."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from hami_metrics.domain.redaction import EVERYBODY
from hami_metrics.pages.cards import card_lines, changes, lanes, neighbours, picture_begin
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


def test_the_picture_of_a_card_begins_where_somebody_held_it() -> None:
    since = NOW - timedelta(days=1)

    assert picture_begin([a_period(100, None)], since, NOW) == NOW - timedelta(minutes=102)
    assert picture_begin([a_period(3000, None)], since, NOW) == since
    assert picture_begin((), since, NOW) == since


def test_lanes_are_used_again_and_never_overlap() -> None:
    held = [a_period(60, 30), a_period(50, None), a_period(30, 10), a_period(300, 200)]
    drawn = lanes(held, (), EVERYBODY, since=NOW - timedelta(hours=1), until=NOW)

    assert [(bar.x, bar.width, bar.y, bar.open) for bar in drawn.bars] == [
        (0.0, 500.0, 0, False),
        (166.7, 833.3, 18, True),
        (500.0, 333.3, 0, False),
    ]


def test_sickness_is_a_band_from_its_beginning_to_its_end() -> None:
    def health(minutes: float, healthy: bool) -> dict[str, Any]:
        at = NOW - timedelta(minutes=minutes)
        return {"at": at, "healthy": healthy, "reason": "" if healthy else "xid 79"}

    events = [health(45, False), health(30, True), health(15, False)]
    drawn = lanes((), events, EVERYBODY, since=NOW - timedelta(hours=1), until=NOW)

    assert drawn.bands == [
        (250.0, 250.0, "xid 79"),
        (750.0, 250.0, "xid 79"),
    ]


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

    assert [(line.granted, line.used) for line in lines] == [(10, 5), (0, None)]


def test_a_card_has_a_time_of_its_state_only_where_that_was_recorded() -> None:
    cards = [a_card(0, "n1", healthy=False), a_card(1, "n1", a_holder())]
    at = NOW - timedelta(minutes=7)
    health = [
        {"at": at, "device_uuid": f"GPU-n1-{index}", "healthy": index == 1} for index in (0, 1)
    ]

    lines = card_lines(cards, {}, health, silent=False)

    assert [line.unhealthy_since for line in lines] == [at, None]
