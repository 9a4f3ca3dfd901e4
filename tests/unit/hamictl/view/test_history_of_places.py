"""The history of a node or a card: steps of its grants and its cards' health, by time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hamictl.view.history import place_changes

SINCE, UNTIL = datetime(2026, 11, 20, 12, tzinfo=UTC), datetime(2026, 11, 20, 15, tzinfo=UTC)


def at(clock: str) -> str:
    return f"2026-11-20T{clock}:00+00:00"


def a_step(clock: str, state: str, allocation: str = "a1", **changes: Any) -> dict[str, Any]:
    given = {
        "changed_at": at(clock),
        "change": int(clock.replace(":", "")),
        "previous_state": None,
        "state": state,
        "reason": "",
        "actor": "scheduler",
        "namespace": "vision",
        "pod_name": "x",
        "pod_uid": "uid-x",
        "node": "n2",
        "allocation_id": allocation,
    }
    return {**given, **changes}


SLICE = {"allocation_id": "a1", "node": "n2", "card_index": 0, "device_uuid": "GPU-b0"}
INCIDENT = {
    "sick_at": at("14:03"),
    "well_at": at("14:30"),
    "node": "n2",
    "card_index": 0,
    "device_uuid": "GPU-b0",
    "health_reason": "xid 79",
}


def test_steps_of_grants_on_it_and_its_health_stand_by_time() -> None:
    steps = [a_step("14:04", "released", reason="card unhealthy"), a_step("12:11", "reserved")]
    elsewhere = a_step("12:30", "reserved", allocation="a2")

    found = place_changes([*steps, elsewhere], [SLICE, SLICE], [INCIDENT], SINCE, UNTIL)

    assert [(row["at"], row["state"]) for row in found.rows] == [
        (at("12:11"), "reserved"),
        (at("14:03"), "unhealthy"),
        (at("14:04"), "released"),
        (at("14:30"), "healthy"),
    ]
    assert [[column.show(row) for column in found.columns][1:6] for row in found.rows[1:3]] == [
        ["✖ unhealthy", "-", "n2/0", "xid 79", "-"],
        ["released", "vision/x", "n2/0", "card unhealthy", "scheduler"],
    ]
    assert [found.name(row) for row in found.rows[:2]] == ["pod/vision/x", "device/GPU-b0"]


def test_an_incident_is_shown_by_what_of_it_is_in_the_time() -> None:
    began_before = {**INCIDENT, "sick_at": "2026-11-19T09:00:00+00:00"}
    goes_on = {**INCIDENT, "well_at": None}

    assert [row["state"] for row in place_changes([], [], [began_before], SINCE, UNTIL).rows] == [
        "healthy"
    ]
    assert [row["state"] for row in place_changes([], [], [goes_on], SINCE, UNTIL).rows] == [
        "unhealthy"
    ]
