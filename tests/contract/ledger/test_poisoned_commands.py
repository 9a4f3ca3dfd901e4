"""Commands that the real ledger refuses, beside good ones in one batch of the writer."""

import asyncio
import random
import string
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.ledger.writer import Answer, LedgerWriter
from hamicommon.domain.allocations import Placement
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.model import Change, Command, Draft, Entry
from hamicommon.settings import PostgresSettings

from tests.contract.ledger.allocation_stores import (
    NODE,
    Harness,
    card,
    container,
    draft,
    quota_of,
)

pytestmark = pytest.mark.integration

GOOD = 100
SURROGATE = "a\ud800b"
"""Python's text may hold half a character, UTF-8 may not."""


class CountingStore(PostgresAllocationStore):
    """The real store, and how many commands came together."""

    batches: list[int]

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        """See PostgresAllocationStore."""
        self.batches.append(len(commands))
        return await super().commit(commands)


@asynccontextmanager
async def ledger(dsn: str) -> AsyncIterator[tuple[CountingStore, Database]]:
    """With one card that has room for all."""
    async with open_database(PostgresSettings(dsn=dsn), application="test") as database:
        store = CountingStore(database, quota_of=quota_of, on_commit=lambda: None)
        store.batches = []
        inventory = PostgresInventory(database, on_commit=lambda: None)
        harness = Harness(store=store, ledger=store, database=database, inventory=inventory)
        await harness.add(card("0", slots=GOOD + 10, memory_mib=10_000))
        yield store, database


def slice_of(pod: str, **changes: Any) -> Draft:
    return draft(pod, container(("0", 10, 0)), **changes)


def placement_fields(**changes: Any) -> dict[str, Any]:
    made = slice_of("bad").placement
    assert isinstance(made, Placement)
    return {"placement": replace(made, **changes)}


LONG = "".join(random.Random(1).choices(string.ascii_letters, k=1 << 20))
"""A text that does not compress to the size of an index row."""

POISONED = [
    pytest.param({"annotations": {"a": SURROGATE}}, Unavailable, id="json-with-half-a-character"),
    pytest.param({"traceparent": SURROGATE}, Unavailable, id="text-with-half-a-character"),
    pytest.param({"annotations": {"a": 1 << 70}}, Unavailable, id="json-with-a-number-of-70-bits"),
    pytest.param({"policy": {"a": object()}}, Unavailable, id="json-of-an-object"),
    pytest.param({"annotations": ["a"]}, Unavailable, id="a-mistake-of-ours"),
    pytest.param({"lease_s": 1e300}, Unavailable, id="interval-out-of-range"),
    pytest.param({"lease_s": float("nan")}, Unavailable, id="interval-of-no-number"),
    pytest.param({"pod_name": LONG}, InvalidRequest, id="index-row-too-long"),
    pytest.param(placement_fields(score="high"), Unavailable, id="text-for-a-number"),
    pytest.param(
        placement_fields(containers=(container(("0", 1, 0), index=1 << 15),)),
        Unavailable,
        id="index-out-of-range",
    ),
]


@pytest.mark.parametrize(("poison", "given"), POISONED)
async def test_what_the_ledger_cannot_store_is_refused_alone_in_a_batch_of_101(
    postgres_dsn: str, poison: dict[str, Any], given: type[HamiError]
) -> None:
    entries = [Entry(draft=slice_of(f"good-{number}")) for number in range(GOOD)]
    entries.insert(GOOD // 2, Entry(draft=slice_of("bad", **poison)))
    async with ledger(postgres_dsn) as (store, database):
        writer = LedgerWriter(store, window_s=0.0, on_committed=lambda _committed: None)
        queued = [writer.submit(entry) for entry in entries]
        running = asyncio.create_task(writer.run())
        try:
            answers = await asyncio.gather(*queued)
            later = await writer.enter(Entry(draft=slice_of("later")))
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        refused = answers.pop(GOOD // 2)
        live = await database.fetch("SELECT pod_uid, node FROM allocations WHERE ended_at IS NULL")
        used = await database.fetch("SELECT used_slots, used_memory_mib FROM devices")

    assert store.batches[0] == GOOD + 1
    assert isinstance(refused, given), refused
    assert str(refused)
    assert {type(answer) for answer in answers} == {Change}
    assert isinstance(later, Change)
    assert {row["pod_uid"] for row in live} == {f"good-{n}" for n in range(GOOD)} | {"later"}
    assert {row["node"] for row in live} == {NODE}
    assert [tuple(row) for row in used] == [(GOOD + 1, 10 * (GOOD + 1))]
