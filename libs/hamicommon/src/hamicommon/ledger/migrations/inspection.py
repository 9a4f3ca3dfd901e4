"""Check a database against this version: revision, tables, triggers, partitions, invariants.

`inspect` reads only, takes no lock that a writer meets, and returns all that it finds, not only the
first. What to do about a finding is in docs/operations.md, by the `SchemaFault` that it carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import CheckConstraint
from sqlalchemy.dialects.postgresql import ExcludeConstraint

from hamicommon.errors import InvalidRequest
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import SCHEMA_ERRORS
from hamicommon.ledger.invariants import broken
from hamicommon.ledger.migrations import upgrade
from hamicommon.ledger.migrations.revisions import of_both_branches
from hamicommon.ledger.migrations.session import SchemaSession
from hamicommon.ledger.partitions import days_of
from hamicommon.ledger.tables import metadata
from hamicommon.settings import PostgresSettings

# SAFE-6 reads all of the history: some ten seconds per million allocations.
STATEMENT_TIMEOUT_S = 300.0
PARTITIONED = ("decisions", "usage_samples")
GUARDS = (
    ("append_only", "allocation_events"),
    ("append_only_truncate", "allocation_events"),
    ("gap_free", "allocation_events"),
    ("period_begun", "allocations"),
    ("period_ended", "allocations"),
    ("append_only", "operator_calls"),
    ("append_only_truncate", "operator_calls"),
    ("card_came", "devices"),
    ("card_changed", "devices"),
    ("heard_again", "nodes"),
    ("quota_came", "quotas"),
    ("quota_changed", "quotas"),
)
"""Triggers that protect the history, and their tables."""
VIEWS = (
    "v_allocation_history",
    "v_capacity_hours",
    "v_card_history",
    "v_device_occupancy",
    "v_idle_share",
    "v_namespace_gpu_hours",
    "v_pending_reasons",
    "v_pods_on_sick_cards",
    "v_sick_cards",
)


class SchemaFault(StrEnum):
    """Kinds of findings, the most serious first."""

    NEWER = "newer"
    """The database belongs to a later version than this code."""
    BEHIND = "behind"
    """Migrations are missing."""
    DRIFT = "drift"
    """The schema differs from its revision: a partial restore, or a manual change."""
    BROKEN = "broken"
    """A guarantee is violated."""
    PARTITIONS = "partitions"
    """Partitions of the coming days are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference or violation."""

    fault: SchemaFault
    sentence: str


_REVISION = """
SELECT CASE WHEN to_regclass('alembic_version') IS NOT NULL THEN true END AS known,
       to_regclass('allocations') IS NOT NULL AS tables,
       to_regclass('allocation_periods') IS NOT NULL AS periods
"""
_CONSTRAINTS = """
SELECT conrelid::regclass::text AS on_table, conname AS name, convalidated AS valid
  FROM pg_constraint WHERE contype IN ('c', 'x') AND conrelid = ANY($1::text[]::regclass[])
"""
_TRIGGERS = """
SELECT tgname AS name, tgrelid::regclass::text AS on_table FROM pg_trigger
 WHERE NOT tgisinternal AND tgenabled IN ('O', 'A')
"""
_VIEWS = "SELECT viewname AS name FROM pg_views WHERE schemaname = 'public'"
_HALF_BUILT = "SELECT indexrelid::regclass::text AS name FROM pg_index WHERE NOT indisvalid"


def inspect(settings: PostgresSettings, migrations: Path) -> list[Finding]:
    """Return all findings, over one connection; blocking.

    Raises: Unavailable when the database can't be asked, InvalidRequest for a wrong address or a
    folder without migrations.
    """
    with SchemaSession(settings, command_timeout_s=STATEMENT_TIMEOUT_S) as session:
        current = session.ask(_revisions)
        try:
            missing = upgrade.pending(migrations, current)
        except InvalidRequest as exc:
            if not current:
                raise
            return [Finding(fault=SchemaFault.NEWER, sentence=str(exc))]
        if missing:
            return [Finding(fault=SchemaFault.BEHIND, sentence=_waiting(current, missing))]
        drifted = upgrade.drift(session, migrations)
        found = [Finding(fault=SchemaFault.DRIFT, sentence=sentence) for sentence in drifted]
        return found + session.ask(_inspect_head)


def revisions_of(settings: PostgresSettings) -> tuple[str, ...]:
    """Return the revisions of a database, over a new connection; see `revisions_over`."""
    with SchemaSession(settings, command_timeout_s=STATEMENT_TIMEOUT_S) as session:
        return revisions_over(session)


def revisions_over(session: SchemaSession) -> tuple[str, ...]:
    """Return the revisions that the database records, one per branch; empty for an empty one.

    Blocking. Raises: Unavailable, InvalidRequest when it has our tables and no revision.
    """
    return session.ask(_revisions)


async def _revisions(connection: Connection) -> tuple[str, ...]:
    row = await connection.fetchrow(_REVISION)
    found = (
        await connection.fetch("SELECT version_num::text FROM alembic_version")
        if row["known"]
        else []
    )
    if row["tables"] and not found:
        raise InvalidRequest(
            "the database has tables of HAMi and no revision in alembic_version: it is half "
            "restored; restore a whole backup into an empty database"
        )
    return of_both_branches([each[0] for each in found], has_periods=row["periods"])


async def _inspect_head(connection: Connection) -> list[Finding]:
    found = [Finding(fault=SchemaFault.DRIFT, sentence=it) for it in await _guards(connection)]
    try:
        found += [Finding(fault=SchemaFault.BROKEN, sentence=it) for it in await broken(connection)]
    except SCHEMA_ERRORS as exc:
        sentence = f"the invariants can't be checked: {exc}"
        found.append(Finding(fault=SchemaFault.DRIFT, sentence=sentence))
    return found + [
        Finding(fault=SchemaFault.PARTITIONS, sentence=it) for it in await _days(connection)
    ]


async def _guards(connection: Connection) -> list[str]:
    """Compare triggers and other parts that Alembic ignores."""
    wanted = {
        str(constraint.name): table.name
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint | ExcludeConstraint)
    }
    rows = await connection.fetch(_CONSTRAINTS, list(metadata.tables))
    there = {row["name"]: row for row in rows}
    found = [f"{table} lacks constraint {name}" for name, table in wanted.items() - _names(there)]
    found += [
        f"{row['on_table']} has constraint {name}, which this version does not know"
        for name, row in there.items()
        if name not in wanted
    ]
    found += [f"constraint {name} is not validated" for name in there if not there[name]["valid"]]
    triggers = {(row["name"], row["on_table"]) for row in await connection.fetch(_TRIGGERS)}
    found += [
        f"trigger {name} of {table} is missing or disabled"
        for name, table in GUARDS
        if (name, table) not in triggers
    ]
    views = {row["name"] for row in await connection.fetch(_VIEWS)}
    found += [f"view {name} is missing" for name in VIEWS if name not in views]
    half = await connection.fetch(_HALF_BUILT)
    return sorted(found) + [f"index {row['name']} is half built" for row in half]


def _names(there: dict[str, Any]) -> set[tuple[str, str]]:
    return {(name, row["on_table"]) for name, row in there.items()}


async def _days(connection: Connection) -> list[str]:
    """Check that partitions of today and tomorrow exist (UTC, by the database's clock)."""
    now: datetime = await connection.fetchval("SELECT now()")
    today = now.astimezone(UTC).date()
    found = []
    for table in PARTITIONED:
        days = set(await days_of(connection, table))
        found += [
            f"{table} has no partition for {day}; is its keeper running?"
            for day in (today, today + timedelta(days=1))
            if day not in days
        ]
    return found


def _waiting(current: tuple[str, ...], missing: list[str]) -> str:
    where = f"at revision {' and '.join(current)}" if current else "empty"
    return f"the database is {where} and lacks {', '.join(missing)}: run `hamictl db upgrade`"
