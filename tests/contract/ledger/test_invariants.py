"""Never over-commit: any sequence of reservations and releases against a plain model."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hami_scheduler.adapters.postgres.inventory.store import PostgresInventory
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import PodUid
from hamicommon.errors import CapacityConflict, Conflict
from hamicommon.ledger.database import open_database
from hamicommon.settings import PostgresSettings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.ledger.allocation_stores import Harness, card, container, draft, quota_of
from tests.fakes.ledger import FakeLedger

CARDS = ("0", "1", "2")
share = st.tuples(st.sampled_from(CARDS), st.integers(0, 1000), st.sampled_from((0, 30, 50, 100)))
shares = st.lists(share, min_size=1, max_size=2, unique_by=lambda s: s[0])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 7), shares),
        st.tuples(st.just("end"), st.integers(0, 7), st.none()),
    ),
    max_size=25,
)


async def play(harness: Harness, script: list[tuple[str, int, Any]]) -> list[Any]:
    """Runs the script; returns what came of each step, and the counters at the end."""
    await harness.add(*(card(name, index=int(name)) for name in CARDS))
    results: list[Any] = []
    for verb, number, wanted in script:
        pod = f"pod-{number}"
        try:
            if verb == "reserve":
                await harness.store.begin(draft(pod, container(*wanted)))
            elif await harness.store.live_of(PodUid(pod)) is not None:
                await harness.advance(pod, AllocationState.RELEASED)
            results.append("done")
        except CapacityConflict:
            results.append("no room")
        except Conflict:
            results.append("conflict")
        for name in CARDS:
            slots, memory, core = await harness.used(name)
            assert 0 <= slots <= 3
            assert 0 <= memory <= 1000
            assert 0 <= core <= 100
    results.append([await harness.used(name) for name in CARDS])
    return results


@given(script=steps)
@settings(max_examples=60)
def test_the_fake_never_over_commits(script: list[tuple[str, int, Any]]) -> None:
    fake = FakeLedger(quota_of=quota_of)

    asyncio.run(play(Harness(store=fake, ledger=fake, fake=fake), script))


@pytest.mark.integration
@given(script=steps)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_postgres_does_what_the_fake_does(
    postgres_dsn: str, script: list[tuple[str, int, Any]]
) -> None:
    async def both() -> None:
        fake = FakeLedger(quota_of=quota_of)
        expected = await play(Harness(store=fake, ledger=fake, fake=fake), script)
        await _empty(postgres_dsn)
        dsn = PostgresSettings(dsn=postgres_dsn)
        async with open_database(dsn, application="test") as database:
            store = PostgresAllocationStore(database, quota_of=quota_of, on_commit=lambda: None)
            real = Harness(
                store=store,
                ledger=store,
                database=database,
                inventory=PostgresInventory(database, on_commit=lambda: None),
            )
            assert await play(real, script) == expected

    asyncio.run(both())


async def _empty(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("SET session_replication_role = replica")
    for table in (
        *("allocation_events", "allocation_devices", "allocation_containers", "allocations"),
        *("device_health_events", "devices", "nodes", "outbox"),
    ):
        await connection.execute(f"DELETE FROM {table}")
    await connection.close()
