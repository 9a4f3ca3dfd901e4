"""An older version writes on while `hamictl db upgrade` runs, and no write waits long."""

import asyncio
import itertools
import json
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import asyncpg
from hamicommon.ledger.migrations import upgrade as schema
from hamicommon.ledger.migrations.inspection import inspect

from tests.integration.db.migrations.conversation import HERE, read
from tests.integration.db.migrations.test_migrations import (
    MIGRATIONS,
    connect_as_service,
    send,
    settings_of,
)
from tests.servers import psql
from tests.waiting import Unhurried

OLD = "0007"
ENDED = 4000
"""Grants that the migrations find; fewer than a large cluster has."""
LONGEST_S = 5.0
"""A migration waits half a second for a lock; in seconds of a quiet machine."""
HISTORY = f"""
INSERT INTO nodes (name) VALUES ('n');
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, reserved_at,
                         ended_at)
SELECT gen_random_uuid(), 'old-' || n % 1000, 'ns', 'p', n / 1000 + 1, 'n', 'released',
       now() - make_interval(hours => 10 - n / 1000),
       now() - make_interval(hours => 9 - n / 1000)
  FROM generate_series(0, {ENDED - 1}) AS n;
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state)
SELECT pod_uid, attempt, id, 'released' FROM allocations;
"""

Statement = tuple[str, list[Any]]


def life() -> list[Statement]:
    """Return that version's statements on pod-1, from reservation to end; cards are left out."""
    return [
        (sql, args)
        for sql, args in read(HERE / f"spoken_{OLD}.json")
        if sql.startswith("WITH allocation") and args[0].endswith("01") and "UPDATE dev" not in sql
    ]


def lives() -> Iterator[list[Statement]]:
    """The same for one pod after the other."""
    sent = life()
    identifier = sent[0][1][0]
    for number in itertools.count():
        names = {identifier: str(uuid.uuid4()), "pod-1": f"pod-{number + 1}", "node-a": "n"}
        yield [(sql, [_rename(value, names) for value in args]) for sql, args in sent]


def _rename(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict | list):
        text = json.dumps(value)
        for before, after in names.items():
            text = text.replace(f'"{before}"', f'"{after}"')
        return json.loads(text)
    return value


async def write(connection: asyncpg.Connection, spent_s: list[float]) -> None:
    """Until cancelled; any refusal ends the test."""
    for pod in lives():
        for sql, args in pod:
            started = time.perf_counter()
            await send(connection, sql, args)
            spent_s.append(time.perf_counter() - started)
        await asyncio.sleep(0)


async def test_old_code_goes_on_writing_while_the_schema_is_upgraded(
    empty_postgres_dsn: str, record_property: Any
) -> None:
    settings = settings_of(empty_postgres_dsn)
    await asyncio.to_thread(schema.upgrade, settings, MIGRATIONS, OLD)
    psql(empty_postgres_dsn, HISTORY)
    psql(
        empty_postgres_dsn,
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
        " ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy)"
        " SELECT 'GPU-' || i, 'n', 'NVIDIA', i, 'A100', 9, 9, 9, 9, 9, 9, true"
        " FROM generate_series(0, 2) i",
    )
    assert len(life()) == 6  # reserve, binding, bound, allocated, moved, released
    connection = await connect_as_service(empty_postgres_dsn)
    spent_s: list[float] = []
    upgrading = Unhurried()
    writer = asyncio.create_task(write(connection, spent_s))
    try:
        upgrade = asyncio.create_task(asyncio.to_thread(schema.upgrade, settings, MIGRATIONS))
        await asyncio.wait({writer, upgrade}, return_when=asyncio.FIRST_COMPLETED)
        assert not writer.done(), writer.exception()
        await upgrade
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        await connection.close()

    record_property("longest_stall_s", max(spent_s))
    sys.stdout.write(f"{len(spent_s)} statements; the longest took {max(spent_s):.3f} s\n")
    assert max(spent_s) < LONGEST_S * upgrading.slowdown
    kept = psql(empty_postgres_dsn, "SELECT count(*) FROM allocation_periods")
    ended = psql(empty_postgres_dsn, "SELECT count(*) FROM allocations WHERE ended_at IS NOT NULL")
    assert int(kept) == int(ended) > ENDED
    # The cards of the made-up history were never counted, so only this promise is asked about.
    found = await asyncio.to_thread(inspect, settings, MIGRATIONS)
    assert [it.sentence for it in found if "period" in it.sentence] == []
