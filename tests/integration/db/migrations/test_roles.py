"""The roles of `k8s/base`, made as its Job makes them, on a ledger upgraded from any revision."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml
from hamicommon.ledger.migrations import rights, upgrade
from hamicommon.ledger.migrations.inspection import revisions_of
from hamicommon.ledger.migrations.session import SchemaSession
from hamicommon.ledger.tables import metadata
from hamicommon.settings import PostgresSettings
from hamilocal.servers.binaries import postgres_home
from pydantic import SecretStr

from tests.integration.db.migrations.test_migrations import MIGRATIONS, REVISIONS, settings_of
from tests.servers import psql

JOBS = Path(__file__).parents[4] / "k8s" / "base" / "migrations.yaml"
PASSWORDS = {"SCHEDULER_PASSWORD": "of-the-scheduler", "METRICS_PASSWORD": "of-the-metrics"}
# What the Job of the version before granted, which ran before the `post` migrations did.
GRANTED_BEFORE = """
GRANT USAGE, CREATE ON SCHEMA public TO hami_scheduler, hami_metrics;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO hami_scheduler;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO hami_scheduler;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO hami_metrics;
"""
OWNED_BEFORE = """
ALTER TABLE usage_samples OWNER TO hami_metrics;
ALTER TABLE usage_samples_default OWNER TO hami_metrics;
ALTER TABLE decisions OWNER TO hami_scheduler;
ALTER TABLE decisions_default OWNER TO hami_scheduler;
"""
A_GRANT = """
INSERT INTO nodes (name) VALUES ('n');
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state)
  VALUES ('00000000-0000-4000-8000-000000000001', 'pod', 'ns', 'p', 1, 'n', 'allocated');
"""
FREED = "UPDATE allocations SET state = 'released', ended_at = now() RETURNING state"


def make_roles(dsn: str) -> None:
    """Runs the script of the manifests by psql, with the arguments of the Job's container."""
    documents = [each for each in yaml.safe_load_all(JOBS.read_text()) if each]
    [script] = [each["data"]["roles.sql"] for each in documents if each["kind"] == "ConfigMap"]
    [roles] = [
        container
        for each in documents
        if each["kind"] == "Job"
        for container in each["spec"]["template"]["spec"].get("initContainers", ())
    ]
    program, *arguments = (part.replace("$(DSN)", dsn) for part in roles["command"])
    done = subprocess.run(
        [
            postgres_home() / "bin" / program,
            *(part.replace("/sql/roles.sql", "-") for part in arguments),
        ],
        input=script,
        env={**os.environ, **PASSWORDS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def as_role(dsn: str, role: str) -> str:
    parts = urlsplit(dsn)
    password = PASSWORDS[role.removeprefix("hami_").upper() + "_PASSWORD"]
    return urlunsplit(parts._replace(netloc=f"{role}:{password}@{parts.hostname}:{parts.port}"))


def _starts() -> Iterator[Any]:
    """The oldest one, whose tables had other owners, and the last one; all others in long runs."""
    known = [name[:4] for name in REVISIONS if name >= "0003"]
    for revision in known:
        quick = revision in (known[0], known[-2])
        yield pytest.param(revision, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("revision", list(_starts()))
def test_a_slice_is_freed_after_an_upgrade_from_any_revision(
    empty_postgres_dsn: str, revision: str
) -> None:
    dsn, settings = empty_postgres_dsn, settings_of(empty_postgres_dsn)
    upgrade.upgrade(settings, MIGRATIONS, revision)
    make_roles(dsn)
    psql(dsn, GRANTED_BEFORE)
    psql(dsn, A_GRANT)
    if revision > "0004":
        psql(dsn, OWNED_BEFORE)

    # The Jobs: before the roll-out, and after it.
    make_roles(dsn)
    before = upgrade.before_rollout(MIGRATIONS, revisions_of(settings))
    upgrade.upgrade(settings, MIGRATIONS, before)
    upgrade.upgrade(settings, MIGRATIONS)

    scheduler = as_role(dsn, "hami_scheduler")
    assert psql(scheduler, FREED) == "released"
    assert psql(scheduler, "SELECT count(*) FROM allocation_periods") == "1"
    with SchemaSession(settings) as session:
        assert upgrade.drift(session, MIGRATIONS) == []


@pytest.mark.slow
def test_a_slice_is_freed_at_every_step_between(empty_postgres_dsn: str) -> None:
    """An upgrade stops where it is cut off; no step leaves a table without its rights."""
    dsn, settings = empty_postgres_dsn, settings_of(empty_postgres_dsn)
    make_roles(dsn)
    for name in REVISIONS:
        upgrade.upgrade(settings, MIGRATIONS, name[:4])
        if name > "0006":
            psql(dsn, "DELETE FROM nodes WHERE name NOT IN (SELECT node FROM allocations)")
            psql(
                as_role(dsn, "hami_scheduler"),
                f"INSERT INTO nodes (name) VALUES ('n{name}');"
                "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state)"
                f" VALUES (gen_random_uuid(), '{name}', 'ns', 'p', 1, 'n{name}', 'allocated');"
                + FREED,
            )


@pytest.fixture
def roles(postgres_dsn: str) -> str:
    make_roles(postgres_dsn)
    upgrade.upgrade(settings_of(postgres_dsn), MIGRATIONS)
    psql(postgres_dsn, rights.grants())
    return postgres_dsn


@pytest.mark.parametrize("role", ["hami_scheduler", "hami_metrics"])
def test_a_service_makes_nothing_in_the_schema_and_owns_nothing(roles: str, role: str) -> None:
    assert psql(roles, f"SELECT has_schema_privilege('{role}', 'public', 'CREATE')") == "f"
    assert (
        psql(
            roles,
            "SELECT count(*) FROM pg_class JOIN pg_roles o ON o.oid = relowner"
            f" WHERE rolname = '{role}' AND relnamespace = 'public'::regnamespace",
        )
        == "0"
    )


@pytest.mark.parametrize(
    ("role", "own", "others"),
    [
        ("hami_scheduler", "decisions", "usage_samples"),
        ("hami_metrics", "usage_samples", "decisions"),
    ],
)
def test_a_service_makes_and_drops_the_days_of_its_own_table_alone(
    roles: str, role: str, own: str, others: str
) -> None:
    dsn = as_role(roles, role)

    psql(dsn, f"SELECT hami_ensure_partition('{own}', '2020-01-01')")
    assert psql(dsn, f"SELECT to_regclass('{own}_20200101') IS NOT NULL") == "t"
    psql(dsn, f"SELECT hami_drop_partition('{own}', '2020-01-01')")
    assert psql(dsn, f"SELECT to_regclass('{own}_20200101') IS NULL") == "t"
    for wrong, sentence in (
        (f"hami_drop_partition('{others}', current_date)", "permission denied for the days"),
        (f"hami_ensure_partition('{others}', '2020-01-01')", "permission denied for the days"),
        ("hami_drop_partition('nodes', current_date)", "is no table of days"),
        ("hami_ensure_partition('pg_class', current_date)", "is no table of days"),
        ("hami_ensure_partition('x\"; DROP TABLE nodes; --', now()::date)", "is no table of days"),
    ):
        with pytest.raises(AssertionError, match=sentence):
            psql(dsn, f"SELECT {wrong}")


def test_history_is_append_only_for_the_scheduler(roles: str) -> None:
    for statement in (
        "DELETE FROM allocation_events",
        "UPDATE allocation_events SET reason = ''",
        "UPDATE alembic_version SET version_num = '1'",
    ):
        with pytest.raises(AssertionError, match="permission denied"):
            psql(as_role(roles, "hami_scheduler"), statement)
    psql(as_role(roles, "hami_scheduler"), "UPDATE allocation_events SET published_at = now()")


def test_every_table_documents_who_writes_it() -> None:
    defaults = {"decisions_default", "usage_samples_default"}

    assert set(rights.WRITES) == set(metadata.tables) | defaults


def test_an_owner_that_is_no_superuser_can_do_all_of_it(empty_postgres_dsn: str) -> None:
    """A database of the user's own: CREATEROLE, and the database is the role's."""
    parts = urlsplit(empty_postgres_dsn)
    owner = f"own_{parts.path[1:]}"
    # The server's other databases have these roles, which are the superuser's: lent to the owner,
    # as an administrator who makes roles for others would.
    make_roles(empty_postgres_dsn)
    psql(
        empty_postgres_dsn,
        f"CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD 'x';"
        f'ALTER DATABASE "{parts.path[1:]}" OWNER TO {owner};'
        f"GRANT hami_scheduler, hami_metrics TO {owner} WITH ADMIN OPTION",
    )
    try:
        dsn = urlunsplit(parts._replace(netloc=f"{owner}:x@{parts.hostname}:{parts.port}"))
        make_roles(dsn)
        settings = PostgresSettings(dsn=SecretStr(dsn))
        upgrade.upgrade(settings, MIGRATIONS)
        make_roles(dsn)

        scheduler = as_role(empty_postgres_dsn, "hami_scheduler")
        psql(scheduler, A_GRANT)
        assert psql(scheduler, FREED) == "released"
        psql(scheduler, "SELECT hami_drop_partition('decisions', current_date)")
        assert psql(scheduler, "SELECT has_schema_privilege('public', 'CREATE')") == "f"
    finally:
        psql(
            empty_postgres_dsn,
            f"REASSIGN OWNED BY {owner} TO hami; DROP OWNED BY {owner};"
            f'ALTER DATABASE "{parts.path[1:]}" OWNER TO hami; DROP ROLE {owner}',
        )
