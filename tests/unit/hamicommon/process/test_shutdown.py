"""A task that loses cancellations ends all the same, and a lost one is raised at once."""

from __future__ import annotations

import asyncio

import pytest
from hamicommon.process import shutdown
from hamicommon.process.shutdown import end, propagate_cancellation

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
    monkeypatch.setattr(shutdown, "CANCEL_AGAIN_S", 0.01)
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
