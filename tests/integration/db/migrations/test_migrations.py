"""The migrations make exactly the tables of this version, step by step, beside a running system."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hamicommon.ledger.migrations import upgrade as schema
from hamicommon.ledger.migrations.inspection import SchemaFault, inspect, revisions_of
from hamicommon.ledger.migrations.revisions import NEEDED
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from tests.integration.db.migrations.conversation import HERE, read, record, speak
from tests.servers import psql
from tests.waiting import PATIENCE_S

MIGRATIONS = Path(__file__).parents[4] / "migrations"
LIVE = "00000000-0000-0000-0000-000000000001"
REVISIONS = sorted(path.stem for path in (MIGRATIONS / "versions").glob("*.py"))


def settings_of(dsn: str) -> PostgresSettings:
    return PostgresSettings(dsn=SecretStr(dsn))


def test_upgrade_equals_the_models_and_downgrade_leaves_nothing(empty_postgres_dsn: str) -> None:
    settings = settings_of(empty_postgres_dsn)

    schema.upgrade(settings, MIGRATIONS)
    assert inspect(settings, MIGRATIONS) == []
    schema.downgrade(settings, MIGRATIONS)

    left = psql(
        empty_postgres_dsn,
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " AND relname NOT LIKE 'alembic%'"
        " UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        " UNION ALL SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace"
        " AND typname NOT LIKE '%alembic%'",
    )
    assert left == ""


def test_every_revision_can_be_taken_back_and_applied_again(empty_postgres_dsn: str) -> None:
    settings = settings_of(empty_postgres_dsn)

    for name in REVISIONS:
        schema.upgrade(settings, MIGRATIONS, name[:4])
        # Up to 0010 there is one branch.
        branch = f"{schema.kind_of(name)}@" if name > "0011" else ""
        schema.downgrade(settings, MIGRATIONS, f"{branch}-1")
        schema.upgrade(settings, MIGRATIONS, name[:4])

    assert inspect(settings, MIGRATIONS) == []


def test_live_grants_of_claims_get_rows_of_what_they_use_and_keep_all_when_taken_back(
    empty_postgres_dsn: str,
) -> None:
    settings = settings_of(empty_postgres_dsn)
    schema.upgrade(settings, MIGRATIONS, "0026")
    claims = [
        {"container": "cuda", "claim": "c", "claim_uid": "u", "request": each, "share_id": each}
        for each in ("first", "second")
    ]
    psql(
        empty_postgres_dsn,
        "INSERT INTO nodes (name, source) VALUES ('n', 'agent');"
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
        " healthy, ceiling_slots, ceiling_memory_mib, ceiling_core_percent)"
        " SELECT 'GPU-' || i, 'n', 'NVIDIA', i, 'A100', 10, 1000, 100, true, 10, 1000, 100"
        " FROM generate_series(1, 2) i;"
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, origin)"
        f" VALUES ('{LIVE}', 'p', 'team', 'pod', 1, 'n', 'allocated', 'claim');"
        "INSERT INTO allocation_containers VALUES"
        f" ('{LIVE}', 0, 'init', 'init'), ('{LIVE}', 1, 'cuda', 'app');"
        "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name,"
        " role, device_uuid, vendor, memory_mib, core_percent) SELECT"
        f" '{LIVE}', 1, i - 1, 'cuda', 'app', 'GPU-' || i, 'NVIDIA', i * 100, 10"
        " FROM generate_series(1, 2) i;"
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state, detail)"
        f" VALUES ('p', 1, '{LIVE}', 'bound', '{json.dumps({'claims': claims})}')",
    )
    schema.upgrade(settings, MIGRATIONS, NEEDED)
    rows = psql(
        empty_postgres_dsn,
        "SELECT claim_name, request, container_name, device_uuid, memory_mib, counted"
        " FROM v_claim_holders ORDER BY request",
    )
    assert rows.splitlines() == ["c|first|cuda|GPU-1|100|t", "c|second|cuda|GPU-2|200|t"]

    schema.downgrade(settings, MIGRATIONS, "pre@-1")
    held = psql(empty_postgres_dsn, "SELECT sum(memory_mib) FROM allocation_devices")
    assert held == "300"


def test_events_that_wait_are_announced_once_across_an_upgrade_and_its_way_back(
    empty_postgres_dsn: str,
) -> None:
    settings = settings_of(empty_postgres_dsn)
    schema.upgrade(settings, MIGRATIONS, "0033")
    event = (
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state,"
        " reason{column}) VALUES ('p', {number}, '{id}', '{before}', '{state}', 'why'{value})"
    )
    of_before = {"id": LIVE, "column": "", "value": ""}
    of_now = {"id": LIVE, "column": ", published_at"}
    waits = "SELECT sequence FROM allocation_events WHERE published_at IS NULL ORDER BY 1"
    psql(
        empty_postgres_dsn,
        "INSERT INTO nodes (name) VALUES ('n');"
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state)"
        f" VALUES ('{LIVE}', 'p', 'team', 'pod', 1, 'n', 'allocated');"
        + event.format(number=1, before="new", state="reserved", **of_before)
        + ";INSERT INTO outbox (subject, payload) VALUES ('s.reserved', '{\"sequence\": 1}')",
    )

    schema.upgrade(settings, MIGRATIONS, "0034")
    # The version before writes on beside this one.
    psql(
        empty_postgres_dsn,
        event.format(number=2, before="reserved", state="binding", **of_before)
        + ";INSERT INTO outbox (subject, payload) VALUES ('s.binding', '{\"sequence\": 2}');"
        + event.format(number=3, before="binding", state="bound", value=", NULL", **of_now)
        + ";"
        + event.format(number=4, before="bound", state="allocated", value=", now()", **of_now)
        + ";"
        + event.format(number=5, before="x", state="y", value=", 'infinity'", **of_now),
    )
    assert psql(empty_postgres_dsn, waits) == "3"

    schema.downgrade(settings, MIGRATIONS, "pre@0033")
    rows = psql(
        empty_postgres_dsn,
        "SELECT payload->>'sequence', subject, coalesce(payload->>'pod_name', ''),"
        " coalesce(published_at::text, 'waits') FROM outbox ORDER BY id",
    )
    assert rows.splitlines() == [
        "1|s.reserved||waits",
        "2|s.binding||waits",
        "3|hami.events.v1.allocation.bound|pod|waits",
        "5|hami.events.v1.allocation.y|pod|infinity",
    ]

    schema.upgrade(settings, MIGRATIONS, "0034")
    assert psql(empty_postgres_dsn, waits) == ""


def test_numbers_that_nobody_counts_to_are_put_right_and_then_refused(
    empty_postgres_dsn: str,
) -> None:
    settings = settings_of(empty_postgres_dsn)
    schema.upgrade(settings, MIGRATIONS, "0033")
    psql(
        empty_postgres_dsn,
        "INSERT INTO nodes (name, agent_sequence, pair_scores) VALUES"
        " ('n', 9223372036854775807, '[]'), ('m', -1, '{}');"
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
        " healthy, ceiling_slots, ceiling_memory_mib, ceiling_core_percent, version, info)"
        " VALUES ('GPU', 'n', 'NVIDIA', 0, 'A100', -1, 1000, 100, true, 10, 1000, 100,"
        " 9223372036854775807, '[]')",
    )

    schema.upgrade(settings, MIGRATIONS, NEEDED)

    assert psql(empty_postgres_dsn, "SELECT DISTINCT agent_sequence, pair_scores FROM nodes") == (
        "0|{}"
    )
    card = psql(empty_postgres_dsn, "SELECT slots, info, version < 2 ^ 42 FROM devices")
    assert card == "0|{}|t"
    with pytest.raises(AssertionError, match="ck_devices_version_bounded"):
        psql(empty_postgres_dsn, "UPDATE devices SET version = 9223372036854775807")


def test_what_numbers_are_drawn_from_goes_on_beyond_the_rows(empty_postgres_dsn: str) -> None:
    schema.upgrade(settings_of(empty_postgres_dsn), MIGRATIONS, NEEDED)
    psql(
        empty_postgres_dsn,
        "INSERT INTO drift_journal (class, subject, detail, repaired)"
        " SELECT 'c', 's', 'd', true FROM generate_series(1, 3);"
        "SELECT setval('drift_journal_id_seq', 1);"
        "SELECT setval('allocation_tokens', 9223372036854775807)",
    )

    repaired = psql(empty_postgres_dsn, "SELECT * FROM hami_repair_numbers() ORDER BY 1")

    assert repaired.splitlines() == [
        "allocation_tokens|9223372036854775807|1000000",
        "drift_journal_id_seq|1|1000003",
    ]
    assert psql(empty_postgres_dsn, "SELECT count(*) FROM hami_repair_numbers()") == "0"
    assert psql(empty_postgres_dsn, "SELECT nextval('allocation_tokens')") == "1000001"


def test_a_new_database_takes_all_at_once(empty_postgres_dsn: str) -> None:
    assert revisions_of(settings_of(empty_postgres_dsn)) == ()
    assert schema.before_rollout(MIGRATIONS, ()) == "heads"


@pytest.mark.parametrize(
    "current",
    [["0007"], ["0010"], ["0011"], ["0012"], ["0010", "0014"], ["0013", "0015"], ["0013", NEEDED]],
    ids=" and ".join,
)
def test_before_a_roll_out_all_goes_that_old_code_can_live_with(current: list[str]) -> None:
    assert schema.before_rollout(MIGRATIONS, current) == NEEDED


def test_services_wait_for_the_newest_pre_and_post_follows_on_every_pre_before_it() -> None:
    pre = [name[:4] for name in REVISIONS if schema.kind_of(name) == "pre"]

    assert pre[-1] == NEEDED
    for name in REVISIONS:
        missing = {each[:4] for each in schema.pending(MIGRATIONS, [name[:4]])}
        if schema.kind_of(name) == "post":
            assert not {each for each in pre if each < name[:4]} & missing, name
        else:
            assert not {each for each in pre if each <= name[:4]} & missing, name


@pytest.mark.parametrize("heard", sorted(HERE.glob("spoken_*.json")), ids=lambda path: path.stem)
async def test_what_older_code_sends_works_after_pre(empty_postgres_dsn: str, heard: Path) -> None:
    """The recording is of code at an older revision; it meets the schema while it still serves."""
    settings = settings_of(empty_postgres_dsn)
    revision = heard.stem.removeprefix("spoken_")
    await asyncio.to_thread(schema.upgrade, settings, MIGRATIONS, revision)
    target = schema.before_rollout(MIGRATIONS, [revision])
    assert target != revision
    await asyncio.to_thread(schema.upgrade, settings, MIGRATIONS, target)

    connection = await connect_as_service(empty_postgres_dsn)
    try:
        for sql, args in read(heard):
            await send(connection, sql, args)
        left = await connection.fetch(
            "SELECT pod_uid, array_agg(state ORDER BY sequence) AS states"
            " FROM allocation_events GROUP BY 1 ORDER BY 1"
        )
    finally:
        await connection.close()

    assert {row["pod_uid"]: row["states"] for row in left} == {
        "pod-1": ["reserved", "binding", "bound", "allocated", "allocated", "released"],
        "pod-2": ["reserved", "released", "reserved", "expired", "reserved"],
        "pod-3": ["reserved"],
    }


async def send(connection: asyncpg.Connection, sql: str, args: list[Any]) -> None:
    """Send a statement as recorded: a row of arguments for each parameter list is `executemany`."""
    parameters = max((int(n) for n in re.findall(r"\$(\d+)", sql)), default=0)
    rows = parameters and all(isinstance(row, list) and len(row) == parameters for row in args)
    if rows and not re.search(r"\$1::\w+\[\]", sql):
        await connection.executemany(sql, args)
    else:
        await connection.execute(sql, *args)


async def connect_as_service(dsn: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(dsn)
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
    )
    return connection


async def test_new_code_works_before_post(empty_postgres_dsn: str) -> None:
    settings = settings_of(empty_postgres_dsn)
    for revision in ("0007", schema.before_rollout(MIGRATIONS, ["0007"])):
        await asyncio.to_thread(schema.upgrade, settings, MIGRATIONS, revision)
    assert [f.fault for f in await asyncio.to_thread(inspect, settings, MIGRATIONS)] == [
        SchemaFault.BEHIND
    ]

    await speak(empty_postgres_dsn)


async def test_post_finds_what_both_wrote_in_order(postgres_dsn: str) -> None:
    await speak(postgres_dsn)

    assert await asyncio.to_thread(inspect, settings_of(postgres_dsn), MIGRATIONS) == []


async def test_what_this_version_sends_can_be_recorded_for_later_ones(
    postgres_dsn: str, tmp_path: Path
) -> None:
    await record(postgres_dsn, tmp_path / "spoken.json")

    sent = list(read(tmp_path / "spoken.json"))
    for written in ("allocations", "devices", "decisions", "usage_samples"):
        assert any(written in sql for sql, _ in sent), written
    assert any(isinstance(args, list) and args for _, args in sent)


async def test_a_migration_lets_writers_pass_while_it_waits_for_a_long_transaction(
    empty_postgres_dsn: str,
) -> None:
    """The upgrade asks for its lock a second at a time; a writer no longer waiting than that."""
    settings = settings_of(empty_postgres_dsn)
    await asyncio.to_thread(schema.upgrade, settings, MIGRATIONS, "0010")
    long, writer = await asyncio.gather(
        asyncpg.connect(empty_postgres_dsn), asyncpg.connect(empty_postgres_dsn)
    )
    try:
        reading = long.transaction()
        await reading.start()
        await long.execute("LOCK TABLE allocations IN ROW EXCLUSIVE MODE")  # as who wrote to it
        upgrade = asyncio.create_task(
            asyncio.to_thread(schema.upgrade, settings, MIGRATIONS, "0013")
        )
        await waits_for_lock(writer)
        await writer.execute("INSERT INTO nodes (name) VALUES ('n')")
        async with asyncio.timeout(PATIENCE_S):
            await writer.execute(
                "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state)"
                " VALUES (gen_random_uuid(), 'u', 'ns', 'p', 1, 'n', 'reserved')"
            )
        assert not upgrade.done()
        await reading.rollback()
        async with asyncio.timeout(PATIENCE_S):
            await upgrade
    finally:
        await long.close()
        await writer.close()

    assert revisions_of_now(empty_postgres_dsn) == ["0013"]


async def waits_for_lock(connection: asyncpg.Connection) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted"
            " AND relation = 'allocations'::regclass)"
        ):
            await asyncio.sleep(0.01)


def revisions_of_now(dsn: str) -> list[str]:
    return psql(dsn, "SELECT version_num FROM alembic_version ORDER BY 1").splitlines()


@pytest.mark.parametrize("newest", ["0014", "0015"])
def test_a_ledger_of_the_one_line_is_known_to_have_both_branches(
    empty_postgres_dsn: str, newest: str
) -> None:
    """0014 and 0015 followed on 0013 once, and stood in one row."""
    settings = settings_of(empty_postgres_dsn)
    for revision in ("0013", newest):
        schema.upgrade(settings, MIGRATIONS, revision)
    psql(empty_postgres_dsn, "DELETE FROM alembic_version WHERE version_num = '0013'")
    assert revisions_of_now(empty_postgres_dsn) == [newest]

    assert revisions_of(settings) == ("0013", newest)
    schema.upgrade(settings, MIGRATIONS, schema.before_rollout(MIGRATIONS, revisions_of(settings)))

    assert revisions_of_now(empty_postgres_dsn) == ["0013", NEEDED]
    assert inspect(settings, MIGRATIONS) == []


def test_a_run_that_ended_between_two_pre_is_not_taken_for_the_one_line(
    empty_postgres_dsn: str,
) -> None:
    settings = settings_of(empty_postgres_dsn)
    schema.upgrade(settings, MIGRATIONS, "0015")

    assert revisions_of(settings) == ("0015",)
    assert "0012_post_add_allocation_periods" in schema.pending(MIGRATIONS, ["0015"])
    schema.upgrade(settings, MIGRATIONS)

    assert revisions_of_now(empty_postgres_dsn) == ["0013", NEEDED]
    assert inspect(settings, MIGRATIONS) == []


def test_an_index_build_that_was_cut_off_is_done_again(empty_postgres_dsn: str) -> None:
    settings = settings_of(empty_postgres_dsn)
    schema.upgrade(settings, MIGRATIONS, "0008")
    # What a kill in the middle of 0009 leaves: one index done, one invalid, no revision.
    psql(
        empty_postgres_dsn,
        "CREATE INDEX ix_allocation_events_at_brin ON allocation_events USING brin (at)",
    )
    psql(empty_postgres_dsn, "CREATE INDEX ix_allocations_held ON allocations (id)")
    psql(
        empty_postgres_dsn,
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_allocations_held'::regclass",
    )

    schema.upgrade(settings, MIGRATIONS)

    assert inspect(settings, MIGRATIONS) == []


def test_two_runs_at_once_take_turns(empty_postgres_dsn: str) -> None:
    """Two runs come from the Job of a roll-out that is started twice."""
    command = [sys.executable, "-m", "hamicommon.ledger", str(MIGRATIONS)]
    environment = {**os.environ, "HAMI_POSTGRES_DSN": empty_postgres_dsn}

    runs = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]

    printed = [run.communicate(timeout=PATIENCE_S)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], printed
    assert all("migrations to run after the rollout: nothing" in text for text in printed)
    assert inspect(settings_of(empty_postgres_dsn), MIGRATIONS) == []
