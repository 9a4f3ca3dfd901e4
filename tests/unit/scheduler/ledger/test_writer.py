"""Commands that are committed together, and what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hami_scheduler.ledger.writer import MAX_BATCH, Answer, LedgerWriter
from hamicommon.errors import CapacityConflict, Conflict, Unavailable
from hamicommon.ledger.model import Change, Command, Entry

from tests.contract.ledger.allocation_stores import NODE, container, draft
from tests.fakes.ledger import FakeLedger
from tests.unit.devices import a_device


class Ledger(FakeLedger):
    """A ledger whose transactions are counted, wait for `gate`, and fail for some pods."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.poison: dict[str, Exception] = {}
        device = a_device(type="A100", slots=200, memory_mib=1000)
        self.add_card(NODE, device)

    async def commit(self, commands: Sequence[Command]) -> Any:
        self.batches.append(len(commands))
        await self.gate.wait()
        for command in commands:
            if isinstance(command, Entry) and command.draft.pod_uid in self.poison:
                raise self.poison[command.draft.pod_uid]
        return await super().commit(commands)


def entry(pod: str, memory_mib: int = 1) -> Entry:
    return Entry(draft=draft(pod, container(("0", memory_mib, 0))))


@asynccontextmanager
async def writing(
    ledger: Ledger, committed: list[tuple[Command, Answer]] | None = None, window_s: float = 0.0
) -> AsyncIterator[LedgerWriter]:
    seen = [] if committed is None else committed
    writer = LedgerWriter(ledger, window_s=window_s, on_committed=seen.extend)
    running = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_one_that_comes_alone_is_committed_at_once() -> None:
    ledger = Ledger()
    async with writing(ledger, window_s=3600) as writer:
        change = await writer.enter(entry("a"))

    assert change.allocation.pod_uid == "a"
    assert ledger.batches == [1]


async def test_those_that_come_while_a_commit_runs_are_committed_together() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    async with writing(ledger) as writer:
        first = asyncio.ensure_future(writer.enter(entry("first")))
        while not ledger.batches:
            await asyncio.sleep(0)
        others = [asyncio.ensure_future(writer.enter(entry(f"p{n}"))) for n in range(MAX_BATCH + 1)]
        await asyncio.sleep(0)
        ledger.gate.set()
        await asyncio.gather(first, *others)

    assert ledger.batches == [1, MAX_BATCH, 1]


async def test_what_is_refused_alone_is_refused_alone() -> None:
    ledger, committed = Ledger(), list[tuple[Command, Answer]]()
    async with writing(ledger, committed) as writer:
        answers = await asyncio.gather(
            *(writer.enter(entry(pod, size)) for pod, size in (("a", 600), ("b", 600), ("c", 400))),
            return_exceptions=True,
        )

    assert [type(answer) for answer in answers] == [Change, CapacityConflict, Change]
    assert [type(answer) for _, answer in committed] == [Change, CapacityConflict, Change]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(ValueError("invalid byte sequence"), Unavailable, id="outside-the-tree"),
        pytest.param(Conflict("lost a race"), Conflict, id="in-the-tree"),
    ],
)
async def test_a_poisoned_command_fails_alone_and_the_writer_goes_on(
    error: Exception, expected: type[Exception]
) -> None:
    ledger, committed = Ledger(), list[tuple[Command, Answer]]()
    ledger.poison["bad"] = error
    ledger.gate.clear()
    async with writing(ledger, committed) as writer:
        tasks = [
            asyncio.ensure_future(writer.enter(entry(pod)))
            for pod in ("first", "a", "bad", *(f"p{n}" for n in range(98)))
        ]
        await asyncio.sleep(0)
        ledger.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert (await writer.enter(entry("later"))).allocation.pod_uid == "later"

    assert type(answers[2]) is expected
    assert str(error) in str(answers[2])
    assert sum(isinstance(answer, Change) for answer in answers) == 100
    assert len(committed) == 102


async def test_a_ledger_that_is_unavailable_is_asked_once_for_a_batch() -> None:
    ledger = Ledger()
    ledger.poison["a"] = Unavailable("Postgres is not available")
    async with writing(ledger) as writer:
        answers = await asyncio.gather(
            *(writer.enter(entry(pod)) for pod in "ab"), return_exceptions=True
        )

    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    assert ledger.batches == [2]


async def test_a_caller_that_is_gone_costs_the_others_nothing() -> None:
    ledger, committed = Ledger(), list[tuple[Command, Answer]]()
    ledger.gate.clear()
    async with writing(ledger, committed) as writer:
        gone = asyncio.ensure_future(writer.enter(entry("gone")))
        stays = asyncio.ensure_future(writer.enter(entry("stays")))
        while not ledger.batches:
            await asyncio.sleep(0)
        gone.cancel()
        ledger.gate.set()
        assert (await stays).allocation.pod_uid == "stays"

    assert [type(answer) for _, answer in committed] == [Change, Change]


async def test_those_that_wait_when_the_writer_stops_get_an_error() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    async with writing(ledger) as writer:
        tasks = [asyncio.ensure_future(writer.enter(entry(pod))) for pod in "ab"]
        while not ledger.batches:
            await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(writer.enter(entry("c"))))
        await asyncio.sleep(0)

        await asyncio.sleep(0)
    tasks.append(asyncio.ensure_future(writer.enter(entry("d"))))

    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(answer, Unavailable)


async def test_commands_that_belong_together_are_in_one_transaction() -> None:
    ledger = Ledger()
    ledger.gate.clear()
    async with writing(ledger) as writer:
        first = asyncio.ensure_future(writer.enter(entry("first")))
        while not ledger.batches:
            await asyncio.sleep(0)
        others = [writer.submit(entry(f"p{n}")) for n in range(MAX_BATCH - 1)]
        group = writer.submit_together([entry(f"g{n}") for n in range(8)])
        ledger.gate.set()
        await asyncio.gather(first, *others, *group)

    assert ledger.batches == [1, MAX_BATCH - 1 + 8]


async def test_commands_that_belong_together_stay_so_when_their_batch_fails() -> None:
    ledger = Ledger()
    ledger.poison["bad"] = ValueError("not storable")
    ledger.gate.clear()
    async with writing(ledger) as writer:
        first = asyncio.ensure_future(writer.enter(entry("first")))
        while not ledger.batches:
            await asyncio.sleep(0)
        bad = writer.submit(entry("bad"))
        group = writer.submit_together([entry("g0"), entry("g1")])
        ledger.gate.set()
        await first
        answers = await asyncio.gather(*group)

    assert ledger.batches == [1, 3, 1, 2]
    assert isinstance(await bad, Unavailable)
    assert all(isinstance(each, Change) for each in answers)
