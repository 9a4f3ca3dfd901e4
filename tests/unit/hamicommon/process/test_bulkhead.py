"""One item's failure stays its own, is counted and logged, and not in every round."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hamicommon.errors import Unavailable
from hamicommon.process.bulkhead import LOG_INTERVAL_S, Bulkhead


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
