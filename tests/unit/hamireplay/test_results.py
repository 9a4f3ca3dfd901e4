"""Results of a replay of one's own history, in sentences."""

from datetime import UTC, datetime

import pytest
from hamireplay.arriving import Summary
from hamireplay.churn import ChurnCourse
from hamireplay.history import PodHistory
from hamireplay.results import churn_tables, sentences
from hamireplay.trace import Trace, TracePod

HISTORY = PodHistory(
    trace=Trace(
        nodes=[],
        pods=[
            TracePod(
                name=f"p{hour}",
                cpu_milli=0,
                memory_mib=0,
                cards=1,
                card_milli=500,
                arrives_s=3600.0 * hour,
            )
            for hour in (30, 24)
        ],
    ),
    since=datetime(2026, 1, 1, 3, 4, tzinfo=UTC),
    until=datetime(2026, 2, 3, tzinfo=UTC),
    granted_only=1,
    without_host=1,
)


def summary(card_hours: float, *, waited: int, refused: int) -> Summary[ChurnCourse]:
    course = ChurnCourse(
        in_use=90.0,
        waiting=1.0,
        waiting_pods=2.0,
        card_hours=card_hours,
        arrived=100,
        waited={"share": waited},
        refused={"1 card": refused},
    )
    return Summary(courses=[course])


@pytest.mark.parametrize(
    ("other", "answer"),
    [
        (
            summary(112.3, waited=5, refused=0),
            "12.3 card-hours more in use than binpack; 4 pods fewer would have had to wait, and "
            "1 pod fewer would never have got a place.",
        ),
        (
            summary(99.8, waited=10, refused=3),
            "0.2 card-hours less in use than binpack; 1 pod more would have had to wait, and 2 "
            "pods more would never have got a place.",
        ),
        (
            summary(100.04, waited=9, refused=1),
            "as many card-hours in use as binpack; as many pods would have had to wait, and as "
            "many pods would never have got a place.",
        ),
    ],
)
def test_the_answer_is_the_difference_to_the_first_policy(
    other: Summary[ChurnCourse], answer: str
) -> None:
    found = {"binpack": summary(100.0, waited=9, refused=1), "fragmentation": other}
    first, *rest = sentences(HISTORY, found)

    assert first == (
        f"From 2026-01-02 03:04 to 2026-02-03 00:00 UTC fragmentation would have had {answer}"
    )
    assert [line.partition(":")[0].partition(" is")[0] for line in rest] == [
        "Of 1 pod only what was granted",
        "The CPU of 1 node",
    ]


def test_of_a_short_history_the_hours_are_no_zeros() -> None:
    found = {
        "binpack": summary(0.1, waited=0, refused=0),
        "fragmentation": summary(0.125, waited=0, refused=0),
    }

    assert "0.025 card-hours more in use than binpack" in next(sentences(HISTORY, found))
    [shown, *_] = churn_tables(HISTORY.trace, [], {0.5: found})
    assert [row[-1] for row in shown.rows] == ["0.100", "0.125 (+0.025)"]
