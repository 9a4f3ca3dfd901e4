"""Functions that are called in a process of their own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.computing import ComputeProcess

from tests.unit.hamicommon.process.slow_imports import niceness
from tests.waiting import PATIENCE_S, eventually


@asynccontextmanager
async def running(
    *, deadline_s: float = PATIENCE_S, idle_s: float = 300.0
) -> AsyncIterator[ComputeProcess]:
    process = ComputeProcess(deadline_s=deadline_s, max_waiting=1, idle_s=idle_s)
    keeping = asyncio.create_task(process.run())
    try:
        yield process
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@pytest.fixture
async def process() -> AsyncIterator[ComputeProcess]:
    async with running() as opened:
        yield opened


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def refuse(sentence: str) -> None:
    raise InvalidRequest(sentence)


async def test_what_computes_is_imported_at_the_priority_of_the_caller(
    process: ComputeProcess,
) -> None:
    at_import, computing = await process.call(niceness)

    assert at_import == os.nice(0)
    assert computing == min(at_import + 10, 19)


async def test_questions_are_answered_by_one_other_process(process: ComputeProcess) -> None:
    first, second = [await process.call(os.getpid) for _ in range(2)]

    assert first == second != os.getpid()
    assert await process.call(len, b"x" * 20_000_000) == 20_000_000


async def test_an_error_of_ours_comes_through(process: ComputeProcess) -> None:
    with pytest.raises(InvalidRequest, match="pod: expected a Pod object"):
        await process.call(refuse, "pod: expected a Pod object")

    assert await process.call(abs, -1) == 1


async def test_what_is_printed_there_gets_not_between_the_answers(
    process: ComputeProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await process.call(print, "noise") is None
    assert await process.call(abs, -1) == 1


async def test_a_process_that_dies_costs_its_question_alone(process: ComputeProcess) -> None:
    with pytest.raises(Unavailable, match="ended without an answer"):
        await process.call(os._exit, 3)

    assert await process.call(abs, -1) == 1


async def test_a_question_that_takes_too_long_is_ended_with_its_process() -> None:
    async with running(deadline_s=PATIENCE_S) as process:
        pid = await process.call(os.getpid)
        process._deadline_s = 0.2
        with pytest.raises(Unavailable, match=r"no answer within 0.2 s.*ask for less"):
            await process.call(time.sleep, 10 * PATIENCE_S)
        process._deadline_s = PATIENCE_S

        assert not is_alive(pid)
        assert await process.call(abs, -1) == 1


async def test_more_questions_than_may_wait_are_refused_at_once(process: ComputeProcess) -> None:
    running = [asyncio.create_task(process.call(abs, -n)) for n in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(Unavailable, match="2 such requests are waiting already"):
        await process.call(abs, -1)

    assert await asyncio.gather(*running) == [0, 1]


async def test_the_process_ends_some_time_after_the_last_question() -> None:
    async with running(idle_s=0.05) as process:
        pid = await process.call(os.getpid)

        async def is_gone() -> bool:
            return not is_alive(pid)

        await eventually(is_gone, "the process to end")
        assert await process.call(abs, -1) == 1


async def test_it_ends_with_the_loop_that_keeps_it() -> None:
    async with running() as process:
        pid = await process.call(os.getpid)

    assert not is_alive(pid)
