"""The page of a pod: its state, its slices, what was decided, in order."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hami_metrics.pages.pod import pod_page
from hami_metrics.pages.pod_record import PodRecord
from hami_metrics.pages.waterfall import LastHour
from hamicommon.domain.granted_cards import ConditionKind, GrantedCardCondition
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.ledger.granted_cards import PodCard

from tests.unit.metrics.pages.clusters import NOW, ago


def a_decision(**changes: Any) -> dict[str, Any]:
    return {
        "at": ago(minutes=41),
        "last_at": ago(seconds=3),
        "outcome": "refused",
        "node": None,
        "candidates": 3,
        "summary": "no card has 40 GiB free",
        "message": "no node fits",
        "reason_counts": {"CardTypeMismatch": 1, "CardInsufficientMemory": 2},
        "repeat_count": 12,
        "phase_ms": {},
        "trace_id": "",
        "view_version": 7,
        "request": {},
        "wait_ended_at": None,
        "wait_end": None,
        **changes,
    }


def over(end: str, at: datetime) -> dict[str, Any]:
    return a_decision(wait_end=end, wait_ended_at=at)


def an_attempt(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a",
        "attempt": 1,
        "node": "n1",
        "state": "allocated",
        "reason": "",
        "origin": "scheduled",
        "reserved_at": ago(hours=1),
        "ended_at": None,
        "created_by": None,
        "owner": None,
        "slices": [
            {
                "container": "main",
                "role": "app",
                "device_uuid": "GPU-1",
                "memory_mib": 8192,
                "core_percent": 30,
            }
        ],
        **changes,
    }


def a_pod(**changes: Any) -> PodRecord:
    given_: dict[str, Any] = {
        "uid": "u",
        "namespace": "nlp",
        "name": "train-1",
        "attempts": (),
        "events": (),
        "decisions": (),
        "limits": (),
        "limits_checked_at": None,
        "quotas": (),
        "use": (),
        "cards": (),
        "namesakes": (),
        **changes,
    }
    return PodRecord(**given_)


def test_a_waiting_pod_shows_the_stored_reason_and_since_when() -> None:
    earlier = a_decision(at=ago(minutes=50), last_at=ago(minutes=42))
    placed = a_decision(at=ago(hours=9), last_at=ago(hours=9), outcome="placed")
    page = pod_page(a_pod(decisions=[a_decision(), earlier, placed]), NOW)

    assert (page.status, page.glyph) == ("waiting", "▲")
    assert page.since == ago(minutes=50)
    assert page.sentence == "no card has 40 GiB free"
    assert page.refusals == [("CardInsufficientMemory", 2), ("CardTypeMismatch", 1)]
    assert page.lines == []


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        # kube-scheduler may be away: that nobody asks about a pod does not end its wait.
        ({"decisions": [a_decision(last_at=ago(hours=2))]}, "waiting"),
        ({"decisions": [over("deleted", ago(seconds=1))]}, "deleted, never placed"),
        ({"decisions": [over("gone", ago(seconds=1))]}, "deleted, never placed"),
        ({"decisions": [over("finished", ago(seconds=1))]}, "waits no longer"),
        ({"decisions": [over("deleted", NOW + timedelta(seconds=1))]}, "waiting"),
        ({"attempts": [an_attempt()]}, "holds its slices"),
        ({"attempts": [an_attempt(state="reserved")]}, "being placed"),
        ({"attempts": [an_attempt(state="released", ended_at=ago(minutes=1))]}, "ended"),
        # At a moment of the past it holds what it gave back later.
        (
            {"attempts": [an_attempt(state="released", ended_at=NOW + timedelta(minutes=1))]},
            "holds its slices",
        ),
    ],
)
def test_a_pods_state_is_that_of_the_moment(changes: dict[str, Any], status: str) -> None:
    assert pod_page(a_pod(**changes), NOW).status == status


def test_a_card_that_is_not_as_granted_has_its_text_and_its_limit_is_unknown() -> None:
    lost = GrantedCardCondition(kind=ConditionKind.LOST, sentence="card 0 is lost", advice="Look")
    card = PodCard(
        pod=PodRef(uid=PodUid("u"), namespace="nlp", name="train-1"),
        container="main",
        uuid=GpuUuid("GPU-1"),
        condition=lost,
    )
    holds = a_pod(attempts=[an_attempt()], limits_checked_at=NOW)
    assert pod_page(holds, NOW).lines[0].enforced == "enforced"

    page = pod_page(replace(holds, cards=[card]), NOW)

    assert page.troubles == ["card 0 is lost. Look."]
    assert page.lines[0].enforced == "unknown"
    cordoned = replace(card, condition=replace(lost, kind=ConditionKind.CORDONED))
    assert pod_page(replace(holds, cards=[cordoned]), NOW).lines[0].enforced == "enforced"


def test_what_nobody_measured_or_checked_of_a_pod_is_unknown() -> None:
    [line] = pod_page(a_pod(attempts=[an_attempt()]), NOW).lines
    assert (line.used_mib, line.enforced) == (None, "unknown")

    use = {
        "at": NOW,
        "device_uuid": "GPU-1",
        "pod_uid": "u",
        "container": "main",
        "memory_mib": 4096.0,
        "core_percent": None,
    }
    checked = a_pod(attempts=[an_attempt()], use=[use], limits_checked_at=ago(minutes=1))
    [line] = pod_page(checked, NOW).lines
    assert (line.used_mib, line.core_used_percent, line.enforced) == (4096.0, None, "enforced")


def test_a_limit_that_was_not_held_is_shown_while_it_lasts() -> None:
    breach = {
        "container": "main",
        "device_uuid": "GPU-1",
        "state": "bypassed",
        "reason": "",
        "began_at": ago(minutes=9),
        "ended_at": None,
    }
    pod = a_pod(attempts=[an_attempt()], limits=[breach], limits_checked_at=NOW)
    assert pod_page(pod, NOW).lines[0].enforced == "bypassed"


def test_changes_of_one_moment_stand_in_their_sequence() -> None:
    states = ["reserved", "binding", "bound", "allocated"]
    events = [
        {"at": NOW, "node": "n1", "state": state, "reason": "", "actor": ""} for state in states
    ]
    decision = a_decision(at=NOW, last_at=NOW, outcome="placed", repeat_count=1)
    page = pod_page(a_pod(events=events, decisions=[decision, a_decision()]), NOW)

    assert [text.split()[0].strip(":") for _, text in page.timeline] == [
        *("refused", "placed"),
        *states,
    ]


def test_a_state_of_a_grant_has_its_length_and_rank_and_an_end_has_none() -> None:
    events = [
        {"at": at, "node": "n1", "state": state, "reason": "", "actor": ""}
        for at, state in (
            (ago(seconds=3600.04), "reserved"),
            (ago(hours=1), "bound"),
            (ago(minutes=20), "released"),
        )
    ]
    hour = LastHour(states_ms={"reserved": [10.0, 20.0, 30.0, 40.0, 50.0]})

    page = pod_page(a_pod(events=events), NOW, hour=hour)

    assert [text for _, text in page.timeline] == [
        "reserved on n1, 40.0 ms · p80",
        "bound on n1, 40 min",
        "released on n1",
    ]
