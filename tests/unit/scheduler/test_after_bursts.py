"""What is left of a call is done when nobody waits for another one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hami_scheduler import after_bursts
from hami_scheduler.after_bursts import AT_ONCE, MOST_S, AfterBursts
from hamicommon.telemetry.held import HeldSpans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Burst:
    """Goes on until it is over."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.asked: list[float] = []
        self.was_asked = asyncio.Event()

    async def calm(self, most_s: float) -> None:
        self.asked.append(most_s)
        self.was_asked.set()
        await self.over.wait()


@asynccontextmanager
async def working(burst: Burst, spans: HeldSpans | None = None) -> AsyncIterator[AfterBursts]:
    after = AfterBursts(burst.calm, spans=spans)
    task = asyncio.create_task(after.run())
    try:
        yield after
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_bursts, "EVERY_S", 0.0)


async def test_it_is_done_in_order_when_the_burst_is_over() -> None:
    burst, done, all_done = Burst(), list[int](), asyncio.Event()
    async with working(burst) as after:
        for number in range(3 * AT_ONCE):
            after.put(lambda number=number: done.append(number))  # type: ignore[misc]
        after.put(all_done.set)
        await burst.was_asked.wait()
        assert (done, burst.asked) == ([], [MOST_S])

        burst.over.set()
        await all_done.wait()

    assert done == list(range(3 * AT_ONCE))


async def test_others_have_their_turn_between_a_few_of_them() -> None:
    burst, turns, all_done = Burst(), 0, asyncio.Event()
    async with working(burst) as after:
        for _ in range(4 * AT_ONCE):
            after.put(lambda: None)
        after.put(all_done.set)
        burst.over.set()
        await burst.was_asked.wait()
        while not all_done.is_set():
            turns += 1
            await asyncio.sleep(0)

    assert turns >= 4


async def test_who_asks_for_the_metrics_has_all_of_it_done() -> None:
    burst, done = Burst(), list[str]()
    async with working(burst) as after:
        after.put(lambda: done.append("measured"))
        after.finish()
        assert done == ["measured"]


async def test_what_is_left_at_the_end_is_done_then() -> None:
    burst, done = Burst(), list[str]()
    async with working(burst) as after:
        await burst.was_asked.wait()
        after.put(lambda: done.append("measured"))

    assert done == ["measured"]


async def test_one_that_fails_is_logged_and_takes_no_other_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise ValueError("no such label")

    burst, done = Burst(), list[str]()
    after = AfterBursts(burst.calm)
    after.put(fails)
    after.put(lambda: done.append("measured"))
    with caplog.at_level(logging.ERROR):
        after.finish()

    assert done == ["measured"]
    assert "no such label" in caplog.text


async def test_spans_wait_for_the_end_of_the_burst_too() -> None:
    exporter = InMemorySpanExporter()
    spans = HeldSpans(SimpleSpanProcessor(exporter))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(spans)
    burst = Burst()
    async with working(burst, spans) as after:
        await burst.was_asked.wait()
        provider.get_tracer("test").start_span("filter").end()
        assert exporter.get_finished_spans() == ()

        done = asyncio.Event()
        after.put(done.set)
        burst.over.set()
        await done.wait()

    assert [span.name for span in exporter.get_finished_spans()] == ["filter"]
