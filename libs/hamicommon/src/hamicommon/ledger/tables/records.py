"""Tables of decisions, of announcements on the bus, and of differences that were repaired."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from hamicommon.ledger.tables.columns import at, metadata, texts

decisions = Table(
    "decisions",
    metadata,
    Column("id", BigInteger, Identity(always=True), nullable=False),
    at("at", default=True),
    at("last_at", default=True),
    Column("pod_uid", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("pod_name", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("node", Text),
    Column("allocation_id", UUID(as_uuid=False)),
    Column("candidates", Integer, nullable=False, server_default=text("0")),
    Column("request", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("policy", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("reason_counts", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    texts("message"),
    texts("summary"),
    Column("shortfalls", LargeBinary),
    Column("inventory", Text),
    Column("counters", Text),
    at("detail_at", default=True),
    Column("view_version", BigInteger, nullable=False, server_default=text("0")),
    Column("phase_ms", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    texts("trace_id"),
    Column("repeat_count", Integer, nullable=False, server_default=text("1")),
    Column(
        "wait_ended_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=text("'-infinity'::timestamptz"),
    ),
    Column("wait_end", Text),
    Column("group_key", Text),
    Column("group_size", Integer),
    PrimaryKeyConstraint("at", "id"),
    CheckConstraint("outcome IN ('placed', 'refused', 'error')", name="outcome_known"),
    Index(None, "pod_uid", "at"),
    Index(None, "counters", postgresql_where=text("counters IS NOT NULL")),
    Index(
        "ix_decisions_waited",
        "at",
        postgresql_include=["pod_uid", "namespace"],
        postgresql_where=text("outcome <> 'placed'"),
    ),
    Index("ix_decisions_wait_end", "wait_ended_at", postgresql_where=text("outcome <> 'placed'")),
    Index(
        "ix_decisions_group_key",
        "group_key",
        "at",
        postgresql_where=text("group_key IS NOT NULL"),
    ),
    postgresql_partition_by="RANGE (at)",
)
"""Decisions with their inputs; a refusal that repeats unchanged raises `repeat_count`.

`shortfalls` is compressed JSON (hamicommon.explain.record): reasons, scores, quota. `inventory` and
`counters` name the `decision_snapshots` of the cards it was decided on, at `detail_at`; a placement
has its counters in `shortfalls`.
A refused pod waits until `wait_ended_at`, `infinity` while it waits; `wait_end` is how it ended:
`deleted`, `gone` (deleted while no scheduler watched, so the moment is an estimate), `bound` or
`finished`. Of a refusal from before migration 0032 it is `-infinity`: that pod waited until ten
minutes after `last_at`.
A pod that starts together with others has their `group_key` (`group/NAMESPACE/NAME`) and how many
start together. A decision about all of them has the key as its `pod_uid`, too, and an empty
`pod_name`; so has a verdict of Kueue's admission check (`workload/NAMESPACE/NAME`).
"""

decision_snapshots = Table(
    "decision_snapshots",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    at("used_at", default=True),
    CheckConstraint("kind IN ('inventory', 'counters')", name="kind_known"),
    Index(None, "kind", "used_at"),
)
"""States of cards at decisions, named by a digest of the content and shared by decisions."""

outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("subject", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    texts("traceparent"),
    at("created_at", default=True),
    at("published_at", nullable=True),
    Index("ix_outbox_unpublished", "id", postgresql_where=text("published_at IS NULL")),
)
"""Changes of cards' health that are still to be announced on the bus."""

drift_journal = Table(
    "drift_journal",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    at("at", default=True),
    Column("class", Text, nullable=False),
    Column("subject", Text, nullable=False),
    texts("detail"),
    Column("repaired", Boolean, nullable=False),
    Index(None, "at"),
)
"""Differences between ledger, pods and nodes that the reconciler found and repaired."""
