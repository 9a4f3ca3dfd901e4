"""A task that loses cancellations still ends, and a lost one is raised immediately."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hamicommon.errors import Unavailable
from hamicommon.process import shutdown
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every
from hamicommon.process.shutdown import end, propagate_cancellation

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.timeout(30)


async def _answered_when_cancelled(answer: asyncio.Future[str]) -> str:
    """Answer in place of the cancellation, as `asyncio.wait_for` of Python 3.11 may."""
    try:
        return await answer
    except asyncio.CancelledError:
        return "answered"


async def test_a_task_that_loses_its_first_cancellations_is_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutdown, "CANCEL_RETRY_INTERVAL_S", 0.01)
    lost = 0

    async def loses_three() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost > 3:
                    raise

    task = asyncio.create_task(loses_three())
    await asyncio.sleep(0)
    await end([task])
    assert task.cancelled()
    assert lost == 4


async def test_the_end_waits_for_what_a_task_closes() -> None:
    closed = False

    async def closes() -> None:
        nonlocal closed
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed = True

    task = asyncio.create_task(closes())
    await asyncio.sleep(0)
    await end([task])
    assert closed


async def test_ended_tasks_and_errors_are_no_obstacle() -> None:
    async def dies() -> None:
        raise ValueError("of its own")

    async def returns() -> None:
        return

    tasks = [asyncio.create_task(dies()), asyncio.create_task(returns())]
    await asyncio.wait(tasks)
    await end(tasks)
    assert isinstance(tasks[0].exception(), ValueError)


async def test_a_cancellation_lost_by_a_driver_is_raised_when_its_call_is_over() -> None:
    went_on = False

    async def calls() -> None:
        nonlocal went_on
        with propagate_cancellation():
            await _answered_when_cancelled(asyncio.get_running_loop().create_future())
        went_on = True

    task = asyncio.create_task(calls())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not went_on


async def test_a_call_made_while_cleaning_up_after_a_cancellation_is_let_through() -> None:
    cleaned_up = False

    async def calls() -> None:
        nonlocal cleaned_up
        try:
            await asyncio.Event().wait()
        finally:
            with propagate_cancellation():
                await asyncio.sleep(0)
            cleaned_up = True

    task = asyncio.create_task(calls())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert cleaned_up


async def test_a_time_out_around_a_call_is_still_a_time_out() -> None:
    async def calls() -> None:
        async with asyncio.timeout(0.01):
            with propagate_cancellation():
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await calls()


# --- rounds of a background loop: their order, their failures, their end


@asynccontextmanager
async def _running(loop: Awaitable[None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(loop)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def _rounds(
    outcomes: list[Exception | None],
) -> tuple[Callable[[], Awaitable[None]], asyncio.Event]:
    """A round that ends as listed, then well; the event is set by the first beyond the list."""
    beyond = asyncio.Event()

    async def one_round() -> None:
        if not outcomes:
            beyond.set()
            return
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    return one_round, beyond


async def test_rounds_follow_each_other_until_cancelled() -> None:
    one_round, beyond = _rounds([None, None])
    async with _running(every(0.0, one_round, name="x")) as task:
        await asyncio.wait_for(beyond.wait(), PATIENCE_S)
        assert not task.done()
    assert task.cancelled()


async def test_an_absent_backend_is_logged_and_retried_before_the_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one_round, beyond = _rounds([Unavailable("Postgres does not answer")])
    async with _running(every(1e9, one_round, name="reap", retry_s=0.0)):
        await asyncio.wait_for(beyond.wait(), PATIENCE_S)
    (record,) = caplog.records
    assert record.getMessage() == "Failed to run a round, retrying"
    assert (record.__dict__["loop"], record.__dict__["error"]) == (
        "reap",
        "Postgres does not answer",
    )


async def test_a_retry_is_never_later_than_the_interval() -> None:
    one_round, beyond = _rounds([Unavailable("away")])
    async with _running(every(0.0, one_round, name="x", retry_s=1e9)):
        await asyncio.wait_for(beyond.wait(), PATIENCE_S)


async def test_an_unknown_error_ends_the_loop_loudly() -> None:
    one_round, _ = _rounds([ValueError("nobody thought of it")])
    with pytest.raises(ValueError, match="nobody thought of it"):
        await every(0.0, one_round, name="x")


async def test_a_bulkhead_counts_an_unknown_error_and_the_rounds_go_on() -> None:
    one_round, beyond = _rounds([ValueError("nobody thought of it")])
    bulkhead = Bulkhead()
    async with _running(every(0.0, one_round, name="prices", bulkhead=bulkhead)):
        await asyncio.wait_for(beyond.wait(), PATIENCE_S)
    assert bulkhead.failures == {"prices": 1}


async def test_the_interval_is_asked_after_each_round() -> None:
    asked: list[int] = []
    one_round, beyond = _rounds([None, None])

    def interval_s() -> float:
        asked.append(1)
        return 0.0

    async with _running(every(interval_s, one_round, name="x")):
        await asyncio.wait_for(beyond.wait(), PATIENCE_S)
    assert len(asked) >= 2
