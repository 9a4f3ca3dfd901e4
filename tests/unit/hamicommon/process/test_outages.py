"""An outage is a line when it begins and one when it ends; a start in any order is none."""

from __future__ import annotations

import logging

import pytest
from hamicommon.process.outages import STARTS_WITHIN_S, Outage

Lines = list[tuple[str, str]]


class Clock:
    """Seconds, as the case sets them."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level(logging.INFO)
    return Outage(
        logging.getLogger("x"), failed="away", again="back", about={"loop": "l"}, clock=clock
    )


def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_an_outage_is_two_lines_however_often_it_was_retried(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.worked()
    for _ in range(100):
        outage.failed(OSError("no route"))
    clock.now_s += 7.5
    outage.worked()
    outage.worked()

    assert lines(caplog) == [("WARNING", "away"), ("INFO", "back")]
    first, last = (record.__dict__ for record in caplog.records)
    assert (first["loop"], first["error"]) == ("l", "no route")
    assert (last["loop"], last["lasted_s"]) == ("l", 7.5)


def test_what_is_not_there_yet_at_the_start_is_no_line(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed("nobody serves it")
    clock.now_s += STARTS_WITHIN_S / 2
    outage.failed("nobody serves it")
    outage.worked()

    assert lines(caplog) == []


def test_a_start_that_does_not_succeed_is_a_warning(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed("nobody serves it")
    clock.now_s += STARTS_WITHIN_S
    outage.failed(TimeoutError())
    outage.failed(TimeoutError())

    assert lines(caplog) == [("WARNING", "away")]
    assert caplog.records[0].__dict__["error"] == "TimeoutError"


def test_every_outage_has_its_lines(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.worked()
    for _ in range(3):
        outage.failed("away")
        outage.worked()

    assert lines(caplog) == [("WARNING", "away"), ("INFO", "back")] * 3


def test_where_some_tries_work_it_is_one_outage_until_all_do(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    messages = Outage(logging.getLogger("x"), failed="away", again="back", calm_s=5.0, clock=clock)
    messages.worked()
    for _ in range(20):
        clock.now_s += 1
        messages.failed("away")
        messages.worked()
    clock.now_s += 5
    messages.worked()

    assert lines(caplog) == [("WARNING", "away"), ("INFO", "back")]


def test_where_the_next_try_is_far_away_the_first_failure_is_a_warning(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    hourly = Outage(
        logging.getLogger("x"), failed="away", again="back", starts_within_s=0.0, clock=clock
    )

    hourly.failed("x")

    assert lines(caplog) == [("WARNING", "away")]
