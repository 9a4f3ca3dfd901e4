"""Tables of capacity over time: periods of cards and quotas, and gaps in the record."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from hamicommon.ledger.tables.columns import (
    at,
    bucket,
    hour_or_day,
    metadata,
    number,
    period,
    required_column,
    texts,
)

_OPEN = text("ended_at IS NULL")
_ENDED = text("ended_at IS NOT NULL")

device_periods = Table(
    "device_periods",
    metadata,
    number(),
    required_column("device_uuid", Text),
    required_column("node", Text),
    required_column("vendor", Text),
    required_column("type", Text),
    required_column("slots", Integer),
    required_column("memory_mib", Integer),
    required_column("core_percent", Integer),
    required_column("healthy", Boolean),
    texts("health_reason"),
    required_column("cordoned", Boolean),
    required_column("present", Boolean),
    *period(),
    Column("since_known", Boolean, nullable=False, server_default=text("true")),
    CheckConstraint("ended_at >= began_at", name="in_order"),
    Index("uq_device_periods_open", "device_uuid", unique=True, postgresql_where=_OPEN),
    Index(None, "device_uuid", "began_at"),
    Index("ix_device_periods_ended_at", "ended_at", postgresql_where=_ENDED),
)
"""Periods [began_at, ended_at) in which a card did not change; open while it lasts.

A card's periods follow on one another without a gap. Triggers of 0022 write them; what grants use
of a card is no part of it. `since_known` is false where the card was so before `began_at`: of cards
that are older than the table, or whose earlier periods were removed.
"""

node_gaps = Table(
    "node_gaps",
    metadata,
    required_column("node", Text),
    at("began_at"),
    at("ended_at"),
    PrimaryKeyConstraint("node", "began_at"),
    CheckConstraint("ended_at > began_at", name="in_order"),
    Index(None, "ended_at"),
)
"""Times without a message of a node's agent for more than 75 s: its cards are unknown then.

Written when it is heard again; a gap that lasts is seen in `nodes.inventory_at`.
"""

quota_periods = Table(
    "quota_periods",
    metadata,
    number(),
    required_column("namespace", Text),
    required_column("resource", Text),
    required_column("limit_amount", BigInteger),
    *period(),
    Column("since_known", Boolean, nullable=False, server_default=text("true")),
    CheckConstraint("ended_at >= began_at", name="in_order"),
    Index("uq_quota_periods_open", "namespace", "resource", unique=True, postgresql_where=_OPEN),
    Index("ix_quota_periods_ended_at", "ended_at", postgresql_where=_ENDED),
)
"""Periods in which a namespace's limit stayed the same; written by triggers of migration 0022."""

capacity_rollups = Table(
    "capacity_rollups",
    metadata,
    *bucket(),
    required_column("node", Text),
    required_column("type", Text),
    required_column("held_s", Float),
    required_column("idle_s", Float),
    required_column("cordoned_s", Float),
    required_column("unhealthy_s", Float),
    required_column("unknown_s", Float),
    required_column("absent_s", Float),
    PrimaryKeyConstraint("bucket_s", "bucket_start", "node", "type"),
    hour_or_day(),
)
"""Card-seconds per hour or day (UTC) by state; written by the metrics service.

All but `absent_s` add up to the cards that were there, or may have been (see `capacity_between`).
"""

showback_rollups = Table(
    "showback_rollups",
    metadata,
    at("bucket_start"),
    Column("bucket_s", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("memory_us", BigInteger, nullable=False),
    Column("core_us", BigInteger, nullable=False),
    Column("slot_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("bucket_s", "bucket_start", "type", "kind", "namespace"),
    CheckConstraint("bucket_s IN (3600, 86400)", name="hour_or_day"),
    CheckConstraint(
        "kind IN ('held', 'idle', 'stranded', 'cordoned', 'unhealthy', 'unknown')",
        name="kind_known",
    ),
    CheckConstraint("memory_us >= 0 AND core_us >= 0 AND slot_us >= 0", name="not_negative"),
)
"""Card-microseconds per hour or day (UTC) by holder or state; written by the metrics service.

By share of memory, of cores and of slots; each adds up to the cards that existed, or may have
existed (see `showback_between`). `namespace` is empty except for held time.
"""
