"""Common columns and constraint names of the tables, and SQL about a grant's life."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Integer,
    MetaData,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING)

LIVE = "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')"
"""SQL condition for states in which an allocation takes capacity (`LIVE_STATES`)."""

MAX_COUNTER = 2**53 - 1
"""Maximum of a counter: the largest integer that JSON holds exactly."""

HELD = "hami_held(reserved_at, ended_at)"
"""SQL range of the time in which an allocation held its cards.

Half-open; without end while it lives. A clock that was set back makes it empty, never an error.
"""


def at(name: str, *, nullable: bool = False, default: bool = False) -> Column[Any]:
    """Return a column of a time; `default` makes it the transaction's time."""
    return Column(
        name,
        DateTime(timezone=True),
        nullable=nullable,
        server_default=text("now()") if default else None,
    )


def count(name: str) -> Column[Any]:
    """Return a column of a number that starts at 0."""
    return Column(name, Integer, nullable=False, server_default=text("0"))


def texts(name: str) -> Column[Any]:
    """Return a text column, empty by default and never NULL."""
    return Column(name, Text, nullable=False, server_default=text("''"))


def objects(name: str) -> Column[Any]:
    """Return a column of a JSON object, empty by default."""
    return Column(name, JSONB, nullable=False, server_default=text("'{}'::jsonb"))


def required_column(name: str, kind: Any) -> Column[Any]:
    """Return a column that every row states: never NULL, and without a default."""
    return Column(name, kind, nullable=False)


def number() -> Column[Any]:
    """Return the column `id`, which numbers the rows."""
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def period() -> tuple[Column[Any], ...]:
    """Return the columns of a period [began_at, ended_at); `ended_at` is NULL while it lasts."""
    return at("began_at"), at("ended_at", nullable=True)


def bucket() -> tuple[Column[Any], ...]:
    """Return the columns of a sum's beginning and of its length in seconds."""
    return at("bucket_start"), required_column("bucket_s", Integer)


def hour_or_day() -> CheckConstraint:
    """Return the constraint of sums that cover an hour or a day (UTC)."""
    return CheckConstraint("bucket_s IN (3600, 86400)", name="hour_or_day")


# Adapters translate these constraints into domain errors by name.
ONE_LIVE_PER_POD = "uq_allocations_live_pod"
SLOTS_WITHIN_CEILING = "ck_devices_slots_within_ceiling"
MEMORY_WITHIN_CEILING = "ck_devices_memory_within_ceiling"
CORES_WITHIN_CEILING = "ck_devices_cores_within_ceiling"
PLACEMENTS_DISJOINT = "ck_devices_placements_disjoint"
ONE_GRANT_AT_A_TIME = "ex_allocation_periods_one_grant_at_a_time"
"""Constraint that periods of a pod's grants don't overlap; a trigger of 0012 raises it too."""
VERSION_GROWS = "ck_devices_version_grows"
"""Name under which the trigger `version_grows` of migration 0034 raises."""
EVENTS_GAP_FREE = "ck_allocation_events_gap_free"
"""Name under which the trigger `gap_free` of migration 0008 raises; no constraint has it."""
