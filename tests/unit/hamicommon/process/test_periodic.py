"""Rounds of a background loop: their order, their failures, their end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hamicommon.errors import Unavailable
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every

from tests.waiting import PATIENCE_S


@asynccontextmanager
async def _running(loop: Awaitable[None]) -> AsyncIterator["asyncio.Task[None]"]:
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
    assert record.getMessage() == "round failed, retrying"
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
