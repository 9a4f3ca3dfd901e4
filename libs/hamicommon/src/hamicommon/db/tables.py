"""Every table of the ledger, defined once; the migrations build exactly these (a test says so).

Who writes what: scheduler replicas write nodes, devices, allocations and what hangs on them; the
metrics service writes usage. Memory is MiB and cores are percent unless a name says otherwise.
Constraint names are part of the contract: adapters translate them into domain errors.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSTZRANGE, UUID, ExcludeConstraint

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING)

LIVE = "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')"
"""SQL of domain.allocations.LIVE_STATES."""

# Names that adapters translate.
ONE_LIVE_PER_POD = "uq_allocations_live_pod"
SLOTS_WITHIN_CEILING = "ck_devices_slots_within_ceiling"
MEMORY_WITHIN_CEILING = "ck_devices_memory_within_ceiling"
CORES_WITHIN_CEILING = "ck_devices_cores_within_ceiling"
PLACEMENTS_DISJOINT = "ck_devices_placements_disjoint"
ONE_GRANT_AT_A_TIME = "ex_allocation_periods_one_grant_at_a_time"
"""Also raised by the trigger of migration 0012 that looks at a grant that begins."""
EVENTS_GAP_FREE = "ck_allocation_events_gap_free"
"""Raised by the trigger `gap_free` of migration 0008, which is no constraint of the catalogue."""

HELD = "hami_held(reserved_at, ended_at)"
"""SQL of the period in which an allocation held its cards.

Half-open; without end while it lives. A clock that was set back makes it empty, never an error.
"""


def _at(name: str, *, nullable: bool = False, default: bool = False) -> Column[Any]:
    return Column(
        name,
        DateTime(timezone=True),
        nullable=nullable,
        server_default=text("now()") if default else None,
    )


def _count(name: str) -> Column[Any]:
    return Column(name, Integer, nullable=False, server_default=text("0"))


def _text(name: str) -> Column[Any]:
    return Column(name, Text, nullable=False, server_default=text("''"))


def _object(name: str) -> Column[Any]:
    return Column(name, JSONB, nullable=False, server_default=text("'{}'::jsonb"))


nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("source", Text, nullable=False, server_default=text("'agent'")),
    _text("agent_id"),
    Column("agent_sequence", BigInteger, nullable=False, server_default=text("0")),
    _at("inventory_at", nullable=True),
    Column("pair_scores", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    _at("first_seen_at", default=True),
    _at("gone_at", nullable=True),
    CheckConstraint("source IN ('agent', 'annotation')", name="source_known"),
)
"""One row per node that ever reported cards; `gone_at` is set when the Node object is deleted."""

devices = Table(
    "devices",
    metadata,
    Column("uuid", Text, primary_key=True),
    Column("node", Text, ForeignKey("nodes.name"), nullable=False),
    Column("vendor", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("core_percent", Integer, nullable=False),
    _count("used_slots"),
    _count("used_memory_mib"),
    _count("used_core_percent"),
    Column("ceiling_slots", Integer, nullable=False),
    Column("ceiling_memory_mib", Integer, nullable=False),
    Column("ceiling_core_percent", Integer, nullable=False),
    _count("numa"),
    Column("mode", Text, nullable=False, server_default=text("'hami-core'")),
    Column("healthy", Boolean, nullable=False),
    _text("health_reason"),
    Column("cordoned", Boolean, nullable=False, server_default=text("false")),
    Column("present", Boolean, nullable=False, server_default=text("true")),
    Column("mig_profiles", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("version", BigInteger, nullable=False, server_default=text("1")),
    _at("updated_at", default=True),
    _object("info"),
    _object("holdings"),
    CheckConstraint("used_slots BETWEEN 0 AND ceiling_slots", name="slots_within_ceiling"),
    CheckConstraint(
        "used_memory_mib BETWEEN 0 AND ceiling_memory_mib", name="memory_within_ceiling"
    ),
    CheckConstraint(
        "used_core_percent BETWEEN 0 AND ceiling_core_percent", name="cores_within_ceiling"
    ),
    CheckConstraint("ceiling_slots >= slots", name="ceiling_slots_cover"),
    CheckConstraint("ceiling_memory_mib >= memory_mib", name="ceiling_memory_cover"),
    CheckConstraint("ceiling_core_percent >= core_percent", name="ceiling_cores_cover"),
    CheckConstraint(
        "holdings = '{}'::jsonb OR hami_placements_disjoint(holdings)", name="placements_disjoint"
    ),
    Index(None, "node"),
)
"""Cards: capacity, what is granted, and the ceiling that capacity last allowed.

The ceiling is greatest(capacity, used at the moment capacity shrank), so an inventory can always be
written down; grants are guarded by capacity, the CHECKs by the ceiling. `version` grows with every
change of the row. `holdings` are the details of live slices: {allocation id: [{role, detail}]}; two
with a `placement` never overlap (migration 0006).
"""

allocation_tokens = Sequence("allocation_tokens", metadata=metadata)
"""Fencing tokens, handed out at reserved -> binding."""

allocations = Table(
    "allocations",
    metadata,
    Column("id", UUID(as_uuid=False), primary_key=True),
    Column("pod_uid", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("pod_name", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("node", Text, ForeignKey("nodes.name"), nullable=False),
    Column("state", Text, nullable=False),
    Column("token", BigInteger),
    Column("policy", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("score", Float, nullable=False, server_default=text("0")),
    _text("traceparent"),
    _text("reason"),
    _at("reserved_at", default=True),
    _at("binding_at", nullable=True),
    _at("bound_at", nullable=True),
    _at("allocated_at", nullable=True),
    _at("ended_at", nullable=True),
    _at("deadline", nullable=True),
    _at("lock_deadline", nullable=True),
    _object("annotations"),
    Column("origin", Text, nullable=False, server_default=text("'scheduled'")),
    UniqueConstraint("pod_uid", "attempt"),
    CheckConstraint("origin IN ('scheduled', 'adopted', 'unmanaged')", name="origin_known"),
    CheckConstraint(
        "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing', 'released', "
        "'expired', 'failed', 'released_unconfirmed')",
        name="state_known",
    ),
    CheckConstraint(f"({LIVE}) = (ended_at IS NULL)", name="ended_when_not_live"),
    Index(ONE_LIVE_PER_POD, "pod_uid", unique=True, postgresql_where=text(LIVE)),
    Index("ix_allocations_live_node", "node", postgresql_where=text(LIVE)),
    Index("ix_allocations_deadline", "deadline", postgresql_where=text("deadline IS NOT NULL")),
    Index(None, "namespace", "pod_name"),
    Index("ix_allocations_reserved_pod", "reserved_at", postgresql_include=["pod_uid"]),
    Index(
        "ix_allocations_held",
        text(HELD),
        text("hami_text_span(node, node, '[]')"),
        postgresql_using="gist",
        postgresql_where=text("ended_at IS NOT NULL"),
    ),
)
"""One row per attempt to give a pod its slices; at most one live row per pod."""

allocation_periods = Table(
    "allocation_periods",
    metadata,
    Column("allocation_id", UUID(as_uuid=False), primary_key=True),
    Column("pod_uid", Text, nullable=False),
    Column("held", TSTZRANGE, nullable=False),
    ExcludeConstraint(
        (text("hami_point(pod_uid, 0)"), "&&"),
        (text("hami_point(pod_uid, 1)"), "&&"),
        ("held", "&&"),
        name=ONE_GRANT_AT_A_TIME,
        using="gist",
    ),
)
"""The period of each grant that ended; a pod's never overlap. Triggers of 0012 write it.

It points at `allocations` by no foreign key, which would lock a row of them for each of its own.
"""

allocation_devices = Table(
    "allocation_devices",
    metadata,
    Column(
        "allocation_id",
        UUID(as_uuid=False),
        ForeignKey("allocations.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("container_index", SmallInteger, nullable=False),
    Column("position", SmallInteger, nullable=False),
    Column("container_name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("device_uuid", Text, ForeignKey("devices.uuid"), nullable=False),
    Column("vendor", Text, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("core_percent", Integer, nullable=False),
    Column("slots", Integer, nullable=False, server_default=text("1")),
    _text("type"),
    _object("detail"),
    PrimaryKeyConstraint("allocation_id", "container_index", "position"),
    CheckConstraint("slots > 0", name="slots_positive"),
    CheckConstraint("role IN ('init', 'app')", name="role_known"),
    Index(None, "device_uuid"),
)
"""Container x card; the device's counters hold max(init, app) per card and allocation."""

allocation_containers = Table(
    "allocation_containers",
    metadata,
    Column(
        "allocation_id",
        UUID(as_uuid=False),
        ForeignKey("allocations.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("container_index", SmallInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    PrimaryKeyConstraint("allocation_id", "container_index"),
)
"""All containers of the pod in spec order, also those without a card (annotations need them)."""

allocation_events = Table(
    "allocation_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("pod_uid", Text, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("allocation_id", UUID(as_uuid=False), ForeignKey("allocations.id"), nullable=False),
    Column("previous_state", Text),
    Column("state", Text, nullable=False),
    _text("reason"),
    _text("actor"),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    _at("at", default=True),
    UniqueConstraint("pod_uid", "sequence"),
    Index(None, "allocation_id"),
    # Rows come in the order of time, so a summary of each run of pages is enough.
    Index("ix_allocation_events_at_brin", "at", postgresql_using="brin"),
)
"""Append-only; `sequence` counts from 1 per pod without a gap."""

decisions = Table(
    "decisions",
    metadata,
    Column("id", BigInteger, Identity(always=True), nullable=False),
    _at("at", default=True),
    _at("last_at", default=True),
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
    _text("message"),
    _text("summary"),
    Column("shortfalls", LargeBinary),
    Column("inventory", Text),
    Column("counters", Text),
    _at("detail_at", default=True),
    Column("view_version", BigInteger, nullable=False, server_default=text("0")),
    Column("phase_ms", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    _text("trace_id"),
    Column("repeat_count", Integer, nullable=False, server_default=text("1")),
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
    postgresql_partition_by="RANGE (at)",
)
"""What was decided and from what; an identical repeated refusal raises `repeat_count`.

`shortfalls` is compressed JSON (hamicommon.explain.record): reasons, scores, quota. `inventory` and
`counters` name the `decision_snapshots` of the cards it was decided on, at `detail_at`.
"""

decision_snapshots = Table(
    "decision_snapshots",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    _at("used_at", default=True),
    CheckConstraint("kind IN ('inventory', 'counters')", name="kind_known"),
    Index(None, "kind", "used_at"),
)
"""Cards as decisions saw them, shared by all that saw the same; named by digests of the content."""

device_health_events = Table(
    "device_health_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("node", Text, nullable=False),
    Column("device_uuid", Text, ForeignKey("devices.uuid"), nullable=False),
    Column("healthy", Boolean, nullable=False),
    _text("reason"),
    _at("at", default=True),
    Index(None, "device_uuid", "at"),
)
"""Each time a card became healthy or sick, or came or went."""

quotas = Table(
    "quotas",
    metadata,
    Column("namespace", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("limit_amount", BigInteger),
    Column("used_amount", BigInteger, nullable=False, server_default=text("0")),
    _at("updated_at", default=True),
    PrimaryKeyConstraint("namespace", "resource"),
    CheckConstraint("used_amount >= 0", name="used_not_negative"),
)
"""`limits.<resource>` of namespaces; a limit of NULL is none. Units are the resource's own."""

outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("subject", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    _text("traceparent"),
    _at("created_at", default=True),
    _at("published_at", nullable=True),
    Index("ix_outbox_unpublished", "id", postgresql_where=text("published_at IS NULL")),
)
"""Facts written in the transaction that made them, until the relay has announced them."""

node_leases = Table(
    "node_leases",
    metadata,
    Column("node", Text, primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("pod_uid", Text, nullable=False),
    Column("allocation_id", UUID(as_uuid=False), nullable=False),
    _at("expires_at"),
)
"""The node lock while Redis is away."""

drift_journal = Table(
    "drift_journal",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _at("at", default=True),
    Column("class", Text, nullable=False),
    Column("subject", Text, nullable=False),
    _text("detail"),
    Column("repaired", Boolean, nullable=False),
    Index(None, "at"),
)
"""What the reconciler found different between ledger, pods and nodes, and whether it mended it."""

usage_samples = Table(
    "usage_samples",
    metadata,
    _at("sampled_at"),
    Column("node", Text, nullable=False),
    Column("device_uuid", Text, nullable=False),
    _text("pod_uid"),
    _text("namespace"),
    _text("pod_name"),
    _text("container"),
    Column("memory_used_bytes", BigInteger),
    Column("memory_limit_bytes", BigInteger),
    Column("core_percent", Float),
    Column("core_limit_percent", Integer),
    PrimaryKeyConstraint("sampled_at", "node", "device_uuid", "pod_uid", "container"),
    Index(None, "node", "sampled_at"),
    postgresql_partition_by="RANGE (sampled_at)",
)
"""One card (pod_uid empty) or one container's slice at one moment; NULL is unknown."""

usage_rollups = Table(
    "usage_rollups",
    metadata,
    _at("bucket_start"),
    Column("bucket_s", Integer, nullable=False),
    Column("node", Text, nullable=False),
    Column("device_uuid", Text, nullable=False),
    _text("pod_uid"),
    _text("namespace"),
    _text("pod_name"),
    _text("container"),
    Column("sample_count", Integer, nullable=False),
    Column("memory_used_sum_bytes", Float),
    Column("memory_used_max_bytes", BigInteger),
    Column("memory_limit_max_bytes", BigInteger),
    Column("core_percent_sum", Float),
    Column("core_percent_max", Float),
    PrimaryKeyConstraint("bucket_start", "bucket_s", "node", "device_uuid", "pod_uid", "container"),
    CheckConstraint("bucket_s > 0 AND sample_count > 0", name="not_empty"),
    Index(None, "namespace", "bucket_start"),
)
"""Sums and maxima per bucket; sums make averages over any longer window exact."""

namespace_rollups = Table(
    "namespace_rollups",
    metadata,
    _at("bucket_start"),
    Column("bucket_s", Integer, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("slice_s", Float, nullable=False),
    Column("card_s", Float, nullable=False),
    Column("memory_mib_s", Float, nullable=False),
    Column("core_s", Float, nullable=False),
    Column("sample_count", BigInteger),
    Column("core_percent_sum", Float),
    Column("memory_used_sum_bytes", Float),
    PrimaryKeyConstraint("bucket_s", "bucket_start", "namespace"),
    CheckConstraint("bucket_s IN (3600, 86400)", name="hour_or_day"),
)
"""What a namespace was granted and used in an hour or a day (UTC); month totals are sums of these.

Granted, of app containers: seconds x slices, seconds x share of the card's memory, seconds x MiB,
seconds x cores (1 = a whole card). Used: sums over samples as in `usage_rollups`; NULL where no
sample came.
"""
