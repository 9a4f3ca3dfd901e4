"""History of allocations in the ledger and in the archive."""

import os
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from hamicommon.ledger.tables import metadata
from hamilocal.servers.binaries import postgres_home

from tests.integration.db.one_card import ID, connect_with_a_card

T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await connect_with_a_card(postgres_dsn)
    yield opened
    await opened.close()


async def grant(
    connection: asyncpg.Connection, number: int, start_h: float, end_h: float | None
) -> None:
    """A grant of a slice of a quarter of the card, from and to hours after T0."""
    ended = None if end_h is None else T0 + timedelta(hours=end_h)
    await connection.execute(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
        " reserved_at, ended_at) VALUES ($1, $2, 'team', $2, 1, 'n', $3, $4, $5)",
        ID.format(number),
        f"pod-{number}",
        "allocated" if ended is None else "released",
        T0 + timedelta(hours=start_h),
        ended,
    )
    await connection.execute(
        "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name,"
        " role, device_uuid, vendor, memory_mib, core_percent)"
        " VALUES ($1, 0, 0, 'main', 'app', 'GPU-1', 'NVIDIA', 250, 10)",
        ID.format(number),
    )


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE allocation_events SET reason = 'x'",
        "DELETE FROM allocation_events",
        "TRUNCATE allocation_events",
    ],
)
async def test_history_cannot_be_rewritten_by_its_owner_either(
    connection: asyncpg.Connection, statement: str
) -> None:
    await grant(connection, 1, 0, None)
    await connection.execute(
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state)"
        " VALUES ('pod-1', 1, $1, 'reserved')",
        ID.format(1),
    )

    with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
        await connection.execute(statement)

    assert await connection.fetchval("SELECT reason FROM allocation_events") == ""


async def test_all_of_an_event_but_when_it_was_published_is_guarded(
    connection: asyncpg.Connection,
) -> None:
    await grant(connection, 1, 0, None)
    await connection.execute(
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state)"
        " VALUES ('pod-1', 1, $1, 'reserved')",
        ID.format(1),
    )
    columns = {
        row["attname"]
        for row in await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'allocation_events'::regclass"
            " AND attnum > 0 AND NOT attisdropped"
        )
    }
    allowed = set()
    for column in columns:
        try:
            # An identity is never written; the trigger is asked first.
            value = "DEFAULT" if column == "id" else column
            await connection.execute(f"UPDATE allocation_events SET {column} = {value}")
            allowed.add(column)
        except asyncpg.RestrictViolationError:
            pass

    assert allowed == {"published_at"}


@pytest.mark.parametrize(
    ("hour", "pods"),
    [
        (0.5, []),
        (1, ["pod-1"]),
        (2.5, ["pod-1", "pod-2"]),
        (3, ["pod-2"]),
        (4, ["pod-2", "pod-3"]),
        (1000, ["pod-2", "pod-3"]),
    ],
)
async def test_who_held_a_card_at_any_moment(
    connection: asyncpg.Connection, hour: float, pods: list[str]
) -> None:
    await grant(connection, 1, 1, 3)
    await grant(connection, 2, 2, None)
    await grant(connection, 3, 4, None)

    rows = await connection.fetch(
        "SELECT pod_name FROM allocations_at($1) ORDER BY 1", T0 + timedelta(hours=hour)
    )

    assert [row["pod_name"] for row in rows] == pods


@pytest.mark.parametrize(
    ("hour", "state", "reason"),
    [(1, "reserved", ""), (2, "allocated", "checked"), (2.9, "allocated", "checked")],
)
async def test_a_grant_is_shown_as_it_was_then_not_as_it_became(
    connection: asyncpg.Connection, hour: float, state: str, reason: str
) -> None:
    await grant(connection, 1, 1, 3)
    steps = ((1, None, "reserved", "", 1), (2, "reserved", "allocated", "checked", 2))
    for step in (*steps, (3, "allocated", "released", "pod gone", 3)):
        sequence, previous, entered, why, at = step
        await connection.execute(
            "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state,"
            " state, reason, at) VALUES ('pod-1', $1, $2, $3, $4, $5, $6)",
            *(sequence, ID.format(1), previous, entered, why, T0 + timedelta(hours=at)),
        )

    [row] = await connection.fetch(
        "SELECT state, reason, ended_at, held FROM allocations_at($1)", T0 + timedelta(hours=hour)
    )

    assert (row["state"], row["reason"], row["ended_at"]) == (state, reason, None)
    assert row["held"].upper is None


async def test_a_state_of_which_no_event_is_kept_is_unknown(connection: asyncpg.Connection) -> None:
    await grant(connection, 1, 1, 3)
    await grant(connection, 2, 1, None)

    rows = await connection.fetch(
        "SELECT pod_name, state, ended_at FROM allocations_at($1) ORDER BY 1",
        T0 + timedelta(hours=2),
    )

    assert [tuple(row) for row in rows] == [("pod-1", None, None), ("pod-2", "allocated", None)]


async def test_who_held_a_card_between_two_moments(connection: asyncpg.Connection) -> None:
    for number, (start, end) in enumerate([(0, 1), (1, 2), (2, 3), (3, 4)], start=1):
        await grant(connection, number, start, end)

    rows = await connection.fetch(
        "SELECT pod_name FROM allocations_between($1, $2) ORDER BY 1",
        T0 + timedelta(hours=1),
        T0 + timedelta(hours=3),
    )

    assert [row["pod_name"] for row in rows] == ["pod-2", "pod-3"]


async def test_pods_on_a_sick_card_while_it_was_sick(connection: asyncpg.Connection) -> None:
    await grant(connection, 1, 0, 1)
    await grant(connection, 2, 0, 3)
    await grant(connection, 3, 4, 5)
    for hour, healthy in ((2, False), (3.5, True)):
        await connection.execute(
            "INSERT INTO device_health_events (node, device_uuid, healthy, at)"
            " VALUES ('n', 'GPU-1', $1, $2)",
            healthy,
            T0 + timedelta(hours=hour),
        )

    await grant(connection, 4, 3, None)
    rows = await connection.fetch("SELECT * FROM v_pods_on_sick_cards ORDER BY pod_name")

    assert [row["pod_name"] for row in rows] == ["pod-2", "pod-4"]
    assert [row["together"].upper for row in rows] == [
        T0 + timedelta(hours=3),
        T0 + timedelta(hours=3.5),
    ]


async def test_the_reader_reads_everything_and_writes_nothing(
    connection: asyncpg.Connection,
) -> None:
    await grant(connection, 1, 0, None)
    tables = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " AND relkind IN ('r', 'p', 'v') AND relname <> 'alembic_version'"
    )
    await connection.execute("SELECT hami_ensure_partition('decisions', '2030-01-01')")
    # Not only SET ROLE: days are made for the session user.
    await connection.execute("SET SESSION AUTHORIZATION hami_reader")

    for table in tables:
        await connection.fetch(f"SELECT * FROM {table['relname']} LIMIT 1")
    assert len(await connection.fetch("SELECT * FROM allocations_at(now())")) == 1
    await connection.fetch("SELECT * FROM decisions_20300101")
    for statement in (
        "UPDATE devices SET used_slots = 0",
        "DELETE FROM allocations",
        "INSERT INTO nodes (name) VALUES ('x')",
        "SELECT nextval('allocation_tokens')",
        "SELECT hami_ensure_partition('decisions', '2030-01-02')",
        "CREATE TABLE mine ()",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)


SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "archive-ledger.sh"
ODD_TEXT = 'a "quoted", text;\nwith\ttwo lines \\ and \\N and ü'
# hami_forget_grants (migration 0017) removes these with a grant, directly or by their key.
REMOVED_WITH_GRANTS = {"allocation_periods"} | {
    table.name
    for table in metadata.tables.values()
    if any(key.column.table.name == "allocations" for key in table.foreign_keys)
}
RUN_TIMEOUT_S = 120.0
PERIODS = (
    (
        "device_periods",
        "device_uuid, node, vendor, type, slots, memory_mib, core_percent, healthy, cordoned,"
        " present",
        "'GPU-1', 'n', 'NVIDIA', 'A100', 9, 1000, 100, true, false, true",
    ),
    ("quota_periods", "namespace, resource, limit_amount", "'team', 'r', 5"),
    ("node_gaps", "node", "'n'"),
)


def script() -> str:
    return SCRIPT.read_text()


def month_before(now: datetime) -> tuple[datetime, datetime]:
    until = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (until - timedelta(days=1)).replace(day=1), until


SINCE, UNTIL = month_before(datetime.now(UTC))
BEFORE, INSIDE, LATER = SINCE - timedelta(microseconds=1), SINCE, UNTIL


@pytest.fixture
async def ledger(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Write grants that ended before, in and after the month, and a live one."""
    opened = await connect_with_a_card(postgres_dsn)
    for number, ended in enumerate((BEFORE, INSIDE, UNTIL - timedelta(seconds=1), LATER, None)):
        await opened.execute(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
            " reserved_at, ended_at) VALUES ($1, $2, 'team', $3, 1, 'n', $4, $5, $6)",
            ID.format(number),
            f"pod-{number}",
            f"{ODD_TEXT} {number}",
            "allocated" if ended is None else "released",
            (ended or LATER) - timedelta(days=2),
            ended,
        )
        await opened.execute(
            "INSERT INTO allocation_devices (allocation_id, container_index, position,"
            " container_name, role, device_uuid, vendor, memory_mib, core_percent)"
            " VALUES ($1, 0, 0, 'main', 'app', 'GPU-1', 'NVIDIA', 100, 10)",
            ID.format(number),
        )
        await opened.execute(
            "INSERT INTO allocation_containers (allocation_id, container_index, name, role)"
            " VALUES ($1, 0, 'main', 'app'), ($1, 1, 'beside', 'app')",
            ID.format(number),
        )
        await opened.execute(
            "INSERT INTO allocation_claims VALUES"
            " ($1, 0, 0, 'uid', $2, 'gpu', 'share', 'GPU-1', 'NVIDIA', 100, 10, 1, true)",
            ID.format(number),
            ODD_TEXT,
        )
        await opened.execute(
            "INSERT INTO preempted (room_id, victim_id, room_priority, victim_priority, planned_at,"
            " problem) VALUES ($1, $1, 1000, 10, $2, $3)",
            ID.format(number),
            ended or LATER,
            ODD_TEXT,
        )
        for sequence, at in enumerate((BEFORE, INSIDE, LATER), start=1):
            await opened.execute(
                "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state,"
                " state, reason, detail, at) VALUES"
                " ($1, $2, $3, CASE WHEN $2 > 1 THEN 'reserved' END, 'reserved', $4, $5, $6)",
                f"pod-{number}",
                sequence,
                ID.format(number),
                ODD_TEXT,
                '{"why": "a \\"quoted\\" reason"}',
                at,
            )
    for at in (BEFORE, INSIDE, LATER):
        await opened.execute(
            "INSERT INTO drift_journal (at, class, subject, detail, repaired)"
            " VALUES ($1, 'orphan', 'pod', $2, true)",
            at,
            ODD_TEXT,
        )
        await opened.execute(
            "INSERT INTO device_health_events (node, device_uuid, healthy, reason, at)"
            " VALUES ('n', 'GPU-1', false, $2, $1)",
            at,
            ODD_TEXT,
        )
        await opened.execute(
            "INSERT INTO operator_calls (at, verb, outcome, message)"
            " VALUES ($1, 'adopt', 'done', $2)",
            at,
            ODD_TEXT,
        )
        await opened.execute(
            "INSERT INTO admission_refusals (at, last_at, username, groups, namespace, pod_name,"
            " operation, reason, message) VALUES ($1, $1, $2, ARRAY[$2], 'n', 'p', 'CREATE', 'r',"
            " $2)",
            at,
            ODD_TEXT,
        )
        for table, columns, values in PERIODS:
            await opened.execute(
                f"INSERT INTO {table} ({columns}, began_at, ended_at) VALUES ({values},"
                " $1::timestamptz - interval '1 day', $1)",
                at,
            )
    yield opened
    await opened.close()


def run(dsn: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a reader whose session has another time zone and style of dates."""
    path = f"{postgres_home() / 'bin'}:{os.environ['PATH']}"
    options = "-c role=hami_reader -c timezone=Pacific/Kiritimati"
    return subprocess.run(
        ["bash", "-c", script()],
        cwd=folder,
        env={"PATH": path, "PGOPTIONS": options, "HAMI_POSTGRES_DSN": dsn, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )


def archives(folder: Path) -> dict[str, Path]:
    return {file.stem: file for file in folder.glob("*/*.csv")}


async def test_the_archive_has_the_rows_of_the_month_and_can_be_read_back(
    ledger: asyncpg.Connection, postgres_dsn: str, tmp_path: Path
) -> None:
    done = run(postgres_dsn, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")

    of_grants = "a.id = t.allocation_id AND a.ended_at >= $1 AND a.ended_at < $2"
    expected = {
        "allocations": "SELECT * FROM allocations WHERE ended_at >= $1 AND ended_at < $2",
        **{
            name: f"SELECT t.* FROM {name} t JOIN allocations a ON {of_grants}"
            for name in (
                "allocation_periods",
                "allocation_devices",
                "allocation_containers",
                "allocation_claims",
            )
        },
        **{
            name: f"SELECT * FROM {name} WHERE at >= $1 AND at < $2"
            for name in (
                "allocation_events",
                "drift_journal",
                "device_health_events",
                "operator_calls",
                "admission_refusals",
            )
        },
        "preempted": "SELECT * FROM preempted WHERE planned_at >= $1 AND planned_at < $2",
        **{
            name: f"SELECT t.* FROM {name} t WHERE ended_at >= $1 AND ended_at < $2"
            for name, *_ in PERIODS
        },
    }
    assert archives(tmp_path).keys() == expected.keys()
    for name, query in expected.items():
        await ledger.execute(f"CREATE TEMP TABLE old_{name} (LIKE {name})")
        with archives(tmp_path)[name].open("rb") as file:
            await ledger.copy_to_table(f"old_{name}", source=file, format="csv", header=True)
        loaded = await ledger.fetch(f"SELECT * FROM old_{name}")
        rows = await ledger.fetch(query, SINCE, UNTIL)
        assert len(rows) > 0, name
        assert sorted(map(repr, loaded)) == sorted(map(repr, rows)), name


async def test_what_is_removed_with_a_grant_is_in_its_archive(
    ledger: asyncpg.Connection, postgres_dsn: str, tmp_path: Path
) -> None:
    assert run(postgres_dsn, tmp_path).returncode == 0
    assert archives(tmp_path).keys() >= {"allocations", *REMOVED_WITH_GRANTS}


async def test_an_archive_is_not_written_over(
    ledger: asyncpg.Connection, postgres_dsn: str, tmp_path: Path
) -> None:
    assert run(postgres_dsn, tmp_path).returncode == 0
    before = {name: file.read_bytes() for name, file in archives(tmp_path).items()}
    again = run(postgres_dsn, tmp_path)
    assert again.returncode != 0
    assert "File exists" in again.stderr
    assert {name: file.read_bytes() for name, file in archives(tmp_path).items()} == before


async def test_an_error_ends_with_a_status(
    ledger: asyncpg.Connection, postgres_dsn: str, tmp_path: Path
) -> None:
    """A role that may not read: no archive may look complete."""
    done = run(postgres_dsn, tmp_path, PGOPTIONS="-c role=pg_monitor")
    assert done.returncode != 0
    assert "permission denied" in done.stderr
    assert archives(tmp_path).keys() <= {"allocations"}
