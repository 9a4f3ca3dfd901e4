"""The archive of a month: the lines of docs/operations.md run as they stand, by a reader."""

import os
import re
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from hamicommon.ledger.tables import metadata
from hamilocal.servers.binaries import postgres_home

from tests.integration.db.one_card import ID, connect_with_a_card

pytestmark = pytest.mark.integration

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
ODD_TEXT = 'a "quoted", text;\nwith\ttwo lines \\ and \\N and ü'
# hami_forget_grants (migration 0017) removes these with a grant, by itself or by their key.
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
    (found,) = re.findall(r"```sh\n(archive=.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return str(found)


def month_before(now: datetime) -> tuple[datetime, datetime]:
    until = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (until - timedelta(days=1)).replace(day=1), until


SINCE, UNTIL = month_before(datetime.now(UTC))
BEFORE, INSIDE, LATER = SINCE - timedelta(microseconds=1), SINCE, UNTIL


@pytest.fixture
async def ledger(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Grants that ended before, in and after the month, and one that lives."""
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
    """In the surroundings of a reader whose session has another time zone and style of dates."""
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
