"""Two years of history, of which the older part goes: every promise of the ledger still holds."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from hami_scheduler.adapters.postgres.housekeeping import PostgresRetention
from hami_scheduler.reconcile.retention import HistoryCleanup
from hamicommon.ledger.database import open_database
from hamicommon.ledger.invariants import broken
from hamicommon.settings import PostgresSettings

PODS = 730
"""One ends each day."""
EVER = dict.fromkeys(("grants", "drift", "health", "calls", "capacity", "cards"), 0)

HISTORY = f"""
INSERT INTO nodes (name) VALUES ('n');
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,
       ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy, present, updated_at)
  SELECT 'GPU-' || i, 'n', 'NVIDIA', i, 'A100', 9, 1000, 100, 9, 1000, 100, true, i = 0,
         now() - i * interval '1 day' FROM unnest(ARRAY[0, 100, 500, 600]) AS i;
CREATE TEMP TABLE made AS
  SELECT d AS ended_days, a AS attempt, md5(d || '/' || a)::uuid AS id, 'pod-' || d AS pod_uid
    FROM generate_series(1, {PODS}) AS d, generate_series(1, 2) AS a;
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, reserved_at,
                         ended_at)
  SELECT id, pod_uid, 'team', pod_uid, attempt, 'n', 'released',
         now() - ended_days * interval '1 day' - (3 - attempt) * interval '2 hours',
         now() - ended_days * interval '1 day' - (2 - attempt) * interval '2 hours' FROM made;
-- Placed two years ago, and still there.
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, reserved_at)
  SELECT md5('live')::uuid, 'pod-live', 'team', 'pod-live', 1, 'n', 'allocated',
         now() - interval '720 days';
-- Its first attempt is old, its second is not.
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, reserved_at,
                         ended_at)
  SELECT md5('again' || a)::uuid, 'pod-again', 'team', 'pod-again', a, 'n', 'released',
         now() - d * interval '1 day', now() - (d - 1) * interval '1 day'
    FROM (VALUES (1, 700), (2, 10)) AS v (a, d);
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
                                device_uuid, vendor, memory_mib, core_percent)
  SELECT id, 0, 0, 'main', 'app', 'GPU-' || CASE WHEN pod_uid = 'pod-700' THEN 600 ELSE 0 END,
         'NVIDIA', 250, 10 FROM allocations;
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, at)
  SELECT pod_uid, 2 * attempt - 1, id, NULL, 'reserved', reserved_at FROM allocations
   WHERE attempt = 1;
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, at)
  SELECT pod_uid, 2, id, 'reserved', state, coalesce(ended_at, reserved_at) FROM allocations
   WHERE attempt = 1;
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, at)
  SELECT pod_uid, 3, id, NULL, 'reserved', reserved_at FROM allocations WHERE attempt = 2;
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, at)
  SELECT pod_uid, 4, id, 'reserved', state, ended_at FROM allocations WHERE attempt = 2;
UPDATE devices SET used_slots = 1, used_memory_mib = 250, used_core_percent = 10
 WHERE uuid = 'GPU-0';
INSERT INTO drift_journal (at, class, subject, repaired)
  SELECT now() - d * interval '1 day', 'c', 's', true FROM generate_series(1, {PODS}) AS d;
INSERT INTO device_health_events (node, device_uuid, healthy, at)
  SELECT 'n', uuid, d % 2 = 0, now() - d * interval '1 day'
    FROM devices, generate_series(450, {PODS}, 10) AS d;
"""
SUMMED = """
INSERT INTO namespace_rollups (bucket_start, bucket_s, namespace, slice_s, card_s, memory_mib_s,
                               core_s)
  SELECT date_trunc('hour', now() - $1 * interval '1 day'), 3600, 'team', 60, 60, 60, 60
"""


def days(**kept: int) -> dict[str, int]:
    return EVER | kept


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(postgres_dsn)
    await opened.execute(HISTORY)
    assert await broken(opened) == []
    yield opened
    await opened.close()


async def forget(dsn: str, days: dict[str, int]) -> dict[str, int]:
    async def skip_sleep(_: float) -> None: ...

    async with open_database(PostgresSettings(dsn=dsn), application="test") as database:
        return await HistoryCleanup(PostgresRetention(database), days, sleep=skip_sleep).once()


async def counts(connection: asyncpg.Connection, *tables: str) -> list[int]:
    return [await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables]


async def test_grants_go_pod_by_pod_and_what_is_left_is_whole(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    gone = await forget(postgres_dsn, days(grants=400))

    assert gone == {"grants": PODS - 400 + 1}, "what ended 400 days ago at the latest"
    left = 2 * (PODS - gone["grants"]) + 3
    tables = ("allocations", "allocation_devices", "allocation_events")
    assert await counts(connection, *tables) == [left, left, 2 * left]
    assert await connection.fetchval("SELECT count(*) FROM allocation_periods") == left - 1
    kept = {row[0] for row in await connection.fetch("SELECT DISTINCT pod_uid FROM allocations")}
    assert {"pod-live", "pod-again", "pod-399"} <= kept
    assert not kept & {"pod-401", "pod-730"}
    assert await broken(connection) == []
    assert await forget(postgres_dsn, days(grants=400)) == {"grants": 0}


async def test_the_other_kinds_go_and_the_state_of_each_card_stays(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    gone = await forget(postgres_dsn, days(drift=400, health=400, cards=400))

    assert gone["drift"] == PODS - 400 + 1
    assert gone["health"] == 4 * 28
    # GPU-600 is named by a grant that is kept; GPU-100 went lately.
    assert gone["cards"] == 1
    cards = await connection.fetch("SELECT uuid FROM devices ORDER BY uuid")
    assert [row[0] for row in cards] == ["GPU-0", "GPU-100", "GPU-600"]
    newest = await connection.fetch(
        "SELECT max(at) > now() - interval '451 days' FROM device_health_events"
        " GROUP BY device_uuid"
    )
    assert [row[0] for row in newest] == [True] * 3
    assert await broken(connection) == []


async def test_a_card_goes_after_the_last_grant_that_names_it(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    gone = await forget(postgres_dsn, days(grants=400, drift=400, health=400, cards=400))

    assert gone["cards"] == 2
    assert await broken(connection) == []


async def test_by_zero_everything_is_kept_for_ever(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    tables = ("allocations", "allocation_events", "drift_journal", "device_health_events")
    before = await counts(connection, *tables)

    assert await forget(postgres_dsn, EVER) == {}
    assert await counts(connection, *tables) == before


async def test_what_is_not_summed_up_yet_is_kept(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    """v_namespace_gpu_hours counts it from the grants."""
    await connection.execute(SUMMED, 600)

    await forget(postgres_dsn, days(grants=400))

    oldest = await connection.fetchval("SELECT max(ended_at) < now() - interval '598 days' FROM"
                                       " allocations WHERE pod_uid = 'pod-599'")  # fmt: skip
    assert oldest
    gone = "SELECT count(*) FROM allocations WHERE pod_uid = 'pod-602'"
    assert await connection.fetchval(gone) == 0


async def test_hours_that_were_summed_up_stay_as_they_were(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    await connection.execute(SUMMED, 1)
    query = "SELECT * FROM v_namespace_gpu_hours ORDER BY day"
    # The live grant grows while the test runs.
    await connection.execute("SET TIME ZONE 'UTC'")
    before = [tuple(row)[:2] for row in await connection.fetch(query)]

    assert (await forget(postgres_dsn, days(grants=30)))["grants"]

    assert [tuple(row)[:2] for row in await connection.fetch(query)] == before


REFUSED: list[Any] = [
    pytest.param("DELETE FROM allocation_events", asyncpg.RestrictViolationError, id="delete"),
    pytest.param(
        "SET hami.forgetting = 'on'; DELETE FROM allocation_events"
        " WHERE at > now() - interval '29 days'",
        asyncpg.RestrictViolationError,
        id="young ones",
    ),
    pytest.param(
        "SET hami.forgetting = 'on'; DELETE FROM allocation_events WHERE pod_uid = 'pod-live'",
        asyncpg.RestrictViolationError,
        id="of a live grant",
    ),
    pytest.param(
        "SET hami.forgetting = 'on'; UPDATE allocation_events SET reason = 'x'",
        asyncpg.RestrictViolationError,
        id="a change",
    ),
    pytest.param(
        "SET hami.forgetting = 'on'; TRUNCATE allocation_events",
        asyncpg.RestrictViolationError,
        id="truncate",
    ),
    pytest.param(
        "SET ROLE hami_reader; SELECT hami_forget_grants(now(), 1)",
        asyncpg.InsufficientPrivilegeError,
        id="a reader",
    ),
]


@pytest.mark.parametrize(("statement", "error"), REFUSED)
async def test_nobody_else_removes_history(
    connection: asyncpg.Connection, statement: str, error: type[Exception]
) -> None:
    before = await counts(connection, "allocation_events")

    with pytest.raises(error):
        await connection.execute(statement)

    await connection.execute("RESET ROLE")
    assert await counts(connection, "allocation_events") == before


async def test_nothing_younger_than_thirty_days_goes_whatever_is_asked_for(
    connection: asyncpg.Connection,
) -> None:
    while await connection.fetchval("SELECT hami_forget_grants(now() + interval '1 day', 500)"):
        pass

    youngest_gone = await connection.fetchval(
        "SELECT max(d) FROM generate_series(1, 30) AS d"
        " WHERE NOT EXISTS (SELECT FROM allocations WHERE pod_uid = 'pod-' || d)"
    )
    assert youngest_gone in (None, 30)


CAPACITY = """
INSERT INTO operator_calls (at, verb, outcome)
  SELECT now() - d * interval '1 day', 'adopt', 'done' FROM generate_series(1, 800) AS d;
DELETE FROM device_periods WHERE device_uuid = 'GPU-0';
INSERT INTO device_periods (device_uuid, node, vendor, type, slots, memory_mib, core_percent,
                            healthy, cordoned, present, began_at, ended_at)
  SELECT 'GPU-0', 'n', 'NVIDIA', 'A100', 9, 1000, 100, true, d % 2 = 0, true,
         now() - d * interval '1 day',
         CASE WHEN d > 1 THEN now() - (d - 1) * interval '1 day' END
    FROM generate_series(1, 800) AS d;
INSERT INTO node_gaps
  SELECT 'n', now() - d * interval '1 day', now() - d * interval '1 day' + interval '1 hour'
    FROM generate_series(1, 800) AS d;
INSERT INTO quota_periods (namespace, resource, limit_amount, began_at, ended_at)
  SELECT 'team', 'r', d, now() - d * interval '1 day', now() - (d - 1) * interval '1 day'
    FROM generate_series(2, 800) AS d;
"""


async def test_old_capacity_and_calls_go_and_what_was_before_is_unknown(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    await connection.execute(CAPACITY)

    gone = await forget(postgres_dsn, days(calls=400, capacity=400))

    assert gone["calls"] == 401
    assert gone["capacity"] == 3 * 400
    periods = await connection.fetch(
        "SELECT since_known, ended_at FROM device_periods WHERE device_uuid = 'GPU-0'"
        " ORDER BY began_at"
    )
    assert [row["since_known"] for row in periods] == [False] + [True] * 399
    assert periods[-1]["ended_at"] is None
    unknown_s = await connection.fetchval(
        "SELECT sum(unknown_s) FROM capacity_between(now() - interval '700 days',"
        " now() - interval '600 days') WHERE device_uuid = 'GPU-0'"
    )
    # The node is known since this test began.
    assert unknown_s is None
    await connection.execute("UPDATE nodes SET first_seen_at = now() - interval '800 days'")
    unknown_s = await connection.fetchval(
        "SELECT sum(unknown_s) FROM capacity_between(now() - interval '700 days',"
        " now() - interval '600 days') WHERE device_uuid = 'GPU-0'"
    )
    assert unknown_s == pytest.approx(100 * 86_400)
