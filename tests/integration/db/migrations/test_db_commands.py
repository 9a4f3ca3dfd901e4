"""`hamictl db upgrade | check`: what a person at a terminal gets, whatever the database is like."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from tests.servers import psql

MIGRATIONS = Path(__file__).parents[4] / "migrations"

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    def invoke(dsn: str, *arguments: str) -> Result:
        monkeypatch.setenv("HAMI_POSTGRES_DSN", dsn)
        monkeypatch.setenv("HAMI_MIGRATIONS", str(MIGRATIONS))
        monkeypatch.setenv("HAMI_FOLDER", str(tmp_path))
        return CliRunner().invoke(app, ["db", *arguments])

    return invoke


def settings_of(dsn: str) -> PostgresSettings:
    return PostgresSettings(dsn=SecretStr(dsn))


def read_output(result: Result) -> str:
    """Return the printed text without the line breaks of the terminal's width."""
    return " ".join(result.output.split())


def test_a_new_database_is_brought_up_and_found_well(run: Run, empty_postgres_dsn: str) -> None:
    before = run(empty_postgres_dsn, "check")
    upgraded = run(empty_postgres_dsn, "upgrade")
    again = run(empty_postgres_dsn, "upgrade")
    after = run(empty_postgres_dsn, "check")

    assert before.exit_code == 3
    assert "the database is empty and lacks 0001_pre_create_nodes_devices" in read_output(before)
    assert upgraded.exit_code == again.exit_code == after.exit_code == 0, upgraded.output
    assert "applied 0001_pre_create_nodes_devices" in read_output(upgraded)
    assert "applied" not in again.output
    assert "every rule of the ledger holds" in read_output(after)


def test_post_waits_until_the_roll_out_is_over(run: Run, empty_postgres_dsn: str) -> None:
    upgrade.upgrade(settings_of(empty_postgres_dsn), MIGRATIONS, "0007")

    first = run(empty_postgres_dsn, "upgrade", "--before-rollout")
    between = run(empty_postgres_dsn, "check")
    second = run(empty_postgres_dsn, "upgrade")

    assert "migrations to run after the rollout: 0011_post_drop_event_index" in read_output(first)
    assert between.exit_code == 3
    assert "lacks 0011_post_drop_event_index" in read_output(between)
    assert "applied 0011_post_drop_event_index" in read_output(second)
    assert run(empty_postgres_dsn, "check").exit_code == 0


@pytest.mark.parametrize("command", ["check", "upgrade"])
@pytest.mark.parametrize(
    ("change", "sentence", "status"),
    [
        ({"netloc": "hami@127.0.0.1:1"}, "Postgres at 127.0.0.1:1/", ExitCode.UNREACHABLE),
        ({"path": "/nothing"}, 'database "nothing" does not exist', ExitCode.UNREACHABLE),
        ({"scheme": "mysql"}, "HAMI_POSTGRES_DSN must look like postgresql://", ExitCode.FAILED),
    ],
    ids=["no server", "no database", "no DSN"],
)
def test_a_database_that_can_not_be_reached_is_one_sentence(
    run: Run,
    empty_postgres_dsn: str,
    command: str,
    change: dict[str, str],
    sentence: str,
    status: ExitCode,
) -> None:
    dsn = urlunsplit(urlsplit(empty_postgres_dsn)._replace(**change))

    result = run(dsn, command)

    assert result.exit_code == status
    assert sentence in read_output(result)
    assert "Traceback" not in result.output


def test_the_password_is_never_printed(run: Run) -> None:
    result = run("postgresql://hami:very-secret@127.0.0.1:1/hami", "check")

    assert result.exit_code == ExitCode.UNREACHABLE
    assert "very-secret" not in result.output


def test_a_folder_without_migrations_is_named(
    run: Run, empty_postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HAMI_POSTGRES_DSN", empty_postgres_dsn)
    monkeypatch.setenv("HAMI_MIGRATIONS", str(tmp_path))

    result = CliRunner().invoke(app, ["db", "check"])

    assert result.exit_code == 1
    assert "no migrations here" in read_output(result)


@pytest.mark.parametrize(("command", "status"), [("check", 4), ("upgrade", 1)])
def test_a_database_of_a_later_version_is_left_alone(
    run: Run, postgres_dsn: str, command: str, status: int
) -> None:
    psql(postgres_dsn, "UPDATE alembic_version SET version_num = '9999' WHERE version_num > '0013'")

    result = run(postgres_dsn, command)

    assert result.exit_code == status
    assert "at revision 9999, which this version does not know" in read_output(result)
    assert "9999" in psql(postgres_dsn, "SELECT version_num FROM alembic_version")


@pytest.mark.parametrize("command", ["check", "upgrade"])
@pytest.mark.parametrize(
    "half", ["DROP TABLE alembic_version", "DELETE FROM alembic_version"], ids=["table", "row"]
)
def test_tables_without_a_revision_are_half_a_restore(
    run: Run, postgres_dsn: str, command: str, half: str
) -> None:
    psql(postgres_dsn, half)

    result = run(postgres_dsn, command)

    assert result.exit_code == 1
    assert "half restored" in read_output(result)


def test_parts_of_a_later_schema_are_named_and_nothing_is_changed(
    run: Run, empty_postgres_dsn: str
) -> None:
    """FAULT-44: a restore of the tables of 0008 over a database at revision 0007."""
    upgrade.upgrade(settings_of(empty_postgres_dsn), MIGRATIONS, "0007")
    psql(empty_postgres_dsn, "CREATE TABLE namespace_rollups ()")

    result = run(empty_postgres_dsn, "upgrade")

    assert result.exit_code == 1
    assert "parts of a later schema than its revision" in read_output(result)
    assert "namespace_rollups" in read_output(result)
    assert psql(empty_postgres_dsn, "SELECT version_num FROM alembic_version") == "0007"
    assert psql(empty_postgres_dsn, "SELECT to_regtype('hami_text_span') IS NULL") == "t"


def test_a_role_that_does_not_own_the_tables_gets_that_reason(
    run: Run, empty_postgres_dsn: str
) -> None:
    upgrade.upgrade(settings_of(empty_postgres_dsn), MIGRATIONS, "0010")
    psql(
        empty_postgres_dsn,
        "DO $$ BEGIN CREATE ROLE hami_visitor LOGIN PASSWORD 'x';"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        " GRANT SELECT ON alembic_version TO hami_visitor",
    )
    parts = urlsplit(empty_postgres_dsn)
    netloc = f"hami_visitor:x@{parts.hostname}:{parts.port}"

    result = run(urlunsplit(parts._replace(netloc=netloc)), "upgrade")

    assert result.exit_code == 1
    assert "migrations run as the owner of the tables" in read_output(result)


@pytest.mark.parametrize(
    ("hand", "sentence"),
    [
        ("ALTER TABLE devices DROP CONSTRAINT ck_devices_slots_within_ceiling", "lacks constraint"),
        ("ALTER TABLE nodes ADD CONSTRAINT mine CHECK (true)", "does not know"),
        ("ALTER TABLE allocation_events DISABLE TRIGGER append_only", "missing or disabled"),
        ("DROP TRIGGER gap_free ON allocation_events", "trigger gap_free"),
        ("DROP VIEW v_pods_on_sick_cards", "view v_pods_on_sick_cards is missing"),
        ("DROP INDEX ix_allocations_held", "add index ix_allocations_held"),
        ("ALTER TABLE nodes ADD COLUMN mine int", "remove column nodes.mine"),
        (
            "ALTER TABLE allocation_periods"
            " DROP CONSTRAINT ex_allocation_periods_one_grant_at_a_time",
            "lacks",
        ),
        ("DROP TRIGGER period_ended ON allocations", "trigger period_ended of allocations"),
        (
            "UPDATE pg_index SET indisvalid = false"
            " WHERE indexrelid = 'ix_allocations_held'::regclass",
            "half built",
        ),
    ],
)
def test_what_a_hand_changed_is_found(
    run: Run, postgres_dsn: str, hand: str, sentence: str
) -> None:
    psql(postgres_dsn, hand)

    result = run(postgres_dsn, "check")

    assert result.exit_code == 5, result.output
    assert sentence in read_output(result)


GRANT = """
INSERT INTO nodes (name) VALUES ('n');
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,
    ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy, used_slots, used_memory_mib,
    used_core_percent)
  VALUES ('GPU-1', 'n', 'NVIDIA', 0, 'A100', 9, 1000, 100, 9, 1000, 100, true, 2, 300, 20);
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state)
  VALUES ('00000000-0000-4000-8000-000000000001', 'pod', 'ns', 'p', 1, 'n', 'reserved');
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
    device_uuid, vendor, memory_mib, core_percent)
  VALUES ('00000000-0000-4000-8000-000000000001', 0, 0, 'i', 'init', 'GPU-1', 'NVIDIA', 300, 5),
         ('00000000-0000-4000-8000-000000000001', 1, 0, 'a', 'app', 'GPU-1', 'NVIDIA', 100, 10),
         ('00000000-0000-4000-8000-000000000001', 2, 0, 'b', 'app', 'GPU-1', 'NVIDIA', 100, 10);
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state)
  VALUES ('pod', 1, '00000000-0000-4000-8000-000000000001', 'reserved');
"""


def test_a_sound_ledger_keeps_its_promises(run: Run, postgres_dsn: str) -> None:
    psql(postgres_dsn, GRANT)

    assert run(postgres_dsn, "check").exit_code == 0


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            "UPDATE devices SET used_memory_mib = 200",
            "card GPU-1 on n counts 2 slots, 200 memory, 20 cores; its live grants are 2, 300, 20",
        ),
        (
            """UPDATE devices SET holdings = '{"gone": []}'""",
            "holds a slice for gone, which is no live grant",
        ),
        (
            """UPDATE devices SET holdings = '{"gone": [{"room": true}]}'""",
            "counts grant gone as a room, which it is not",
        ),
        ("DELETE FROM allocation_events", "is reserved, but its last event has nothing"),
        ("UPDATE allocation_events SET sequence = 2", "1 events, numbered 2 to 2"),
        ("UPDATE allocation_events SET previous_state = 'bound'", "goes from bound"),
        ("UPDATE allocation_events SET state = 'bound'", "but its last event has bound"),
        ("UPDATE allocations SET state = 'released', ended_at = now()", "but nothing is kept"),
        (
            "ALTER TABLE devices DROP CONSTRAINT ck_devices_memory_within_ceiling;"
            "UPDATE devices SET used_memory_mib = 2000",
            "gave 2 of 9 slots, 2000 of 1000 memory",
        ),
        (
            "DROP INDEX uq_allocations_live_pod; INSERT INTO allocations"
            " (id, pod_uid, namespace, pod_name, attempt, node, state, reserved_at)"
            " VALUES (gen_random_uuid(), 'pod', 'ns', 'p', 2, 'n', 'reserved', 'infinity')",
            "pod pod has 2 live grants",
        ),
    ],
)
def test_a_broken_promise_is_named_with_its_card_or_pod(
    run: Run, postgres_dsn: str, damage: str, sentence: str
) -> None:
    """With the guards away, as only a superuser can have them."""
    psql(postgres_dsn, GRANT)
    psql(postgres_dsn, f"SET session_replication_role = replica; {damage}")

    result = run(postgres_dsn, "check")

    assert result.exit_code in (5, 6)
    assert sentence in read_output(result)


def test_a_day_without_its_partition_is_found(run: Run, postgres_dsn: str) -> None:
    tomorrow = psql(
        postgres_dsn, "SELECT to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')"
    )
    psql(postgres_dsn, f"DROP TABLE usage_samples_{tomorrow}")

    result = run(postgres_dsn, "check")

    assert result.exit_code == 7
    assert "usage_samples has no partition for" in read_output(result)
