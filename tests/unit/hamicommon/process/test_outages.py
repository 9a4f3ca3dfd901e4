"""One line when an outage begins and one when it ends; none for a start in any order."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hamicommon.errors import Unavailable
from hamicommon.process.backoff import Backoff
from hamicommon.process.bulkhead import LOG_INTERVAL_S, Bulkhead
from hamicommon.process.outages import STARTS_WITHIN_S, Outage
from hamicommon.process.rate_limit import RateLimit
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.clock import Clock

Lines = list[tuple[str, str]]


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


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
    outage.on_success()
    for _ in range(100):
        outage.on_failure(OSError("no route"))
    clock.now += 7.5
    outage.on_success()
    outage.on_success()

    assert lines(caplog) == [("WARNING", "away"), ("INFO", "back")]
    first, last = (record.__dict__ for record in caplog.records)
    assert (first["loop"], first["error"]) == ("l", "no route")
    assert (last["loop"], last["lasted_s"]) == ("l", 7.5)


def test_what_is_not_there_yet_at_the_start_is_no_line(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.on_failure("nobody serves it")
    clock.now += STARTS_WITHIN_S / 2
    outage.on_failure("nobody serves it")
    outage.on_success()

    assert lines(caplog) == []


def test_a_start_that_does_not_succeed_is_a_warning(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.on_failure("nobody serves it")
    clock.now += STARTS_WITHIN_S
    outage.on_failure(TimeoutError())
    outage.on_failure(TimeoutError())

    assert lines(caplog) == [("WARNING", "away")]
    assert caplog.records[0].__dict__["error"] == "TimeoutError"


def test_every_outage_has_its_lines(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.on_success()
    for _ in range(3):
        outage.on_failure("away")
        outage.on_success()

    assert lines(caplog) == [("WARNING", "away"), ("INFO", "back")] * 3


def test_where_some_tries_work_it_is_one_outage_until_all_do(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    messages = Outage(
        logging.getLogger("x"), failed="away", again="back", recovery_s=5.0, clock=clock
    )
    messages.on_success()
    for _ in range(20):
        clock.now += 1
        messages.on_failure("away")
        messages.on_success()
    clock.now += 5
    messages.on_success()

    assert lines(caplog) == [("WARNING", "away"), ("INFO", "back")]


def test_where_the_next_try_is_far_away_the_first_failure_is_a_warning(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    hourly = Outage(
        logging.getLogger("x"), failed="away", again="back", starts_within_s=0.0, clock=clock
    )

    hourly.on_failure("x")

    assert lines(caplog) == [("WARNING", "away")]


# --- pauses between tries


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(1.0, 5.0)
    for most_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert most_s / 2 <= backoff.next_s() <= most_s


def test_after_a_success_a_failure_is_a_first_one() -> None:
    backoff = Backoff(1.0, 60.0)
    for _ in range(5):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 1.0


@pytest.mark.parametrize("first_s", [3.0, 30.0])
def test_no_pause_exceeds_the_longest(first_s: float) -> None:
    backoff = Backoff(first_s, 3.0)
    assert all(backoff.next_s() <= 3.0 for _ in range(10))


def test_two_that_fail_together_do_not_try_again_together() -> None:
    assert len({Backoff(1.0, 1.0).next_s() for _ in range(5)}) > 1


# --- one item's failure stays its own, is counted and logged, and not in every round


def test_the_items_around_a_poisonous_one_are_done(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[str] = []
    bulkhead, done = Bulkhead(failures.append), []

    for item in ("first", "poison", "last"):
        with bulkhead.item("sweep", item):
            if item == "poison":
                raise RecursionError("too deep\n" * 1000)
            done.append(item)

    assert done == ["first", "last"]
    assert bulkhead.failures == {"sweep": 1}
    assert failures == ["sweep"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert len(record.__dict__["error"]) <= 256


def test_what_the_loop_can_name_and_cancellation_go_through() -> None:
    bulkhead = Bulkhead()
    for error in (Unavailable("away"), asyncio.CancelledError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), bulkhead.item("sweep", "pod"):
            raise error
    assert not bulkhead.failures


def test_the_same_failure_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    bulkhead = Bulkhead(clock=lambda: now_s)
    caplog.set_level(logging.ERROR)

    for now_s in (0.0, 1.0, LOG_INTERVAL_S + 1.0):  # noqa: B007 - read by the clock
        with bulkhead.item("sweep", "pod"):
            raise ValueError("poison")

    assert len(caplog.records) == 2
    assert bulkhead.failures == {"sweep": 3}


# --- buckets of tokens, one for each key


def test_a_burst_passes_and_then_so_many_a_second() -> None:
    limit = RateLimit(burst=2, per_s=1)

    found = [limit.take("a", at_s=at) for at in (0, 0, 0, 0.5, 1, 1.5)]

    assert found == [0, 0, None, None, 2, None]
    assert limit.take("b", at_s=1.5) == 0


def test_time_that_goes_back_fills_no_bucket() -> None:
    limit = RateLimit(burst=1, per_s=1)

    assert [limit.take("a", at_s=at) for at in (10, 0, 10)] == [0, None, None]


def test_what_was_taken_for_nothing_is_there_again() -> None:
    limit = RateLimit(burst=10, per_s=0)
    assert limit.take("a", 8, at_s=0) == 0
    limit.give_back("a", 8)
    limit.give_back("unknown", 8)

    assert limit.take("a", 10, at_s=0) == 0
    assert limit.take("a", 1, at_s=0) is None


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 4)), max_size=50))
def test_never_more_passes_than_the_burst_and_what_the_time_brings(
    steps: list[tuple[float, float]],
) -> None:
    limit, at_s, taken = RateLimit(burst=4, per_s=2), 0.0, 0.0
    for pause_s, tokens in steps:
        at_s += pause_s
        if limit.take("a", tokens, at_s=at_s) is not None:
            taken += tokens
        assert taken <= 4 + 2 * at_s + 1e-6
