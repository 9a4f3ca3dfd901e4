"""The page of a card: who held it when, as a picture and step by step."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from hami_metrics.pages.domain.details import HealthEvent, HeldPeriod
from hami_metrics.pages.views.card import changes, lanes, neighbours, pictured_since
from hami_metrics.pages.views.elements.viewer import EVERYBODY

from tests.unit.metrics.pages.clusters import NOW


def a_period(began_min: float, ended_min: float | None, **changes: Any) -> HeldPeriod:
    given_: dict[str, Any] = {
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
    return HeldPeriod(**given_)


def test_the_picture_of_a_card_begins_where_somebody_held_it() -> None:
    since = NOW - timedelta(days=1)

    assert pictured_since([a_period(100, None)], since, NOW) == NOW - timedelta(minutes=102)
    assert pictured_since([a_period(3000, None)], since, NOW) == since
    assert pictured_since((), since, NOW) == since


def test_lanes_are_used_again_and_never_overlap() -> None:
    held = [a_period(60, 30), a_period(50, None), a_period(30, 10), a_period(300, 200)]
    drawn = lanes(held, (), EVERYBODY, since=NOW - timedelta(hours=1), until=NOW)

    assert [(bar.x, bar.width, bar.y, bar.open) for bar in drawn.bars] == [
        (0.0, 500.0, 0, False),
        (166.7, 833.3, 18, True),
        (500.0, 333.3, 0, False),
    ]


def test_sickness_is_a_band_from_its_beginning_to_its_end() -> None:
    def health(minutes: float, healthy: bool) -> HealthEvent:
        at = NOW - timedelta(minutes=minutes)
        return HealthEvent(
            at=at, node="n1", device_uuid="u", healthy=healthy, reason="" if healthy else "xid 79"
        )

    events = [health(45, False), health(30, True), health(15, False)]
    drawn = lanes((), events, EVERYBODY, since=NOW - timedelta(hours=1), until=NOW)

    assert [(band.x, band.width, band.label) for band in drawn.bands] == [
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
