"""Tables of nodes, their cards and grants on these, and of quotas."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from hamicommon.ledger.tables.columns import MAX_COUNTER, at, count, metadata, objects, texts

MAX_VERSION = 2**43 - 1
"""Maximum version of a card; versions start as a time in ms, so this is the year 2248."""

nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("source", Text, nullable=False, server_default=text("'agent'")),
    texts("agent_id"),
    Column("agent_sequence", BigInteger, nullable=False, server_default=text("0")),
    at("inventory_at", nullable=True),
    Column("pair_scores", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    at("first_seen_at", default=True),
    at("gone_at", nullable=True),
    Column("node_group", Text),
    Column("unschedulable", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("source IN ('agent', 'annotation')", name="source_known"),
    CheckConstraint(f"agent_sequence BETWEEN 0 AND {MAX_COUNTER}", name="sequence_bounded"),
    CheckConstraint("jsonb_typeof(pair_scores) = 'object'", name="pair_scores_object"),
)
"""Nodes that ever reported cards; `gone_at` is set when the Node object is deleted.

`node_group` is the value of a label of the Node object, such as its rack; NULL where it has none.
`unschedulable`: it is cordoned (`kubectl cordon`), so no card of it counts as free.
"""

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
    count("used_slots"),
    count("used_memory_mib"),
    count("used_core_percent"),
    Column("ceiling_slots", Integer, nullable=False),
    Column("ceiling_memory_mib", Integer, nullable=False),
    Column("ceiling_core_percent", Integer, nullable=False),
    count("numa"),
    Column("mode", Text, nullable=False, server_default=text("'hami-core'")),
    Column("healthy", Boolean, nullable=False),
    texts("health_reason"),
    Column("cordoned", Boolean, nullable=False, server_default=text("false")),
    Column("present", Boolean, nullable=False, server_default=text("true")),
    Column("mig_profiles", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("version", BigInteger, nullable=False, server_default=text("1")),
    at("updated_at", default=True),
    objects("info"),
    objects("holdings"),
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
    CheckConstraint(f"version BETWEEN 1 AND {MAX_VERSION}", name="version_bounded"),
    CheckConstraint("least(slots, memory_mib, core_percent) >= 0", name="amounts_not_negative"),
    CheckConstraint("jsonb_typeof(info) = 'object'", name="info_object"),
    CheckConstraint("jsonb_typeof(holdings) = 'object'", name="holdings_object"),
    CheckConstraint("jsonb_typeof(mig_profiles) = 'array'", name="mig_profiles_array"),
    Index(None, "node"),
)
"""Cards: capacity, granted amounts, and the ceiling that a capacity once allowed.

The ceiling is greatest(capacity, used at the moment capacity shrank), so an inventory can always be
written down; grants are guarded by capacity, the CHECKs by the ceiling. `version` grows with every
change of the row. `holdings` are the details of live slices: {allocation id: [{role, detail}]},
with `room` true while held for a waiting pod; two with a `placement` that are held at the same time
never overlap (migrations 0033, 0043).
"""

device_health_events = Table(
    "device_health_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("node", Text, nullable=False),
    Column("device_uuid", Text, ForeignKey("devices.uuid"), nullable=False),
    Column("healthy", Boolean, nullable=False),
    texts("reason"),
    at("at", default=True),
    Index(None, "device_uuid", "at"),
)
"""Changes of cards: healthy, unhealthy, appeared, or gone."""

quotas = Table(
    "quotas",
    metadata,
    Column("namespace", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("limit_amount", BigInteger),
    Column("used_amount", BigInteger, nullable=False, server_default=text("0")),
    at("updated_at", default=True),
    PrimaryKeyConstraint("namespace", "resource"),
    CheckConstraint("used_amount >= 0", name="used_not_negative"),
    CheckConstraint("limit_amount >= 0", name="limit_not_negative"),
)
"""Quotas `limits.<resource>` in the resource's own unit; a limit of NULL means none."""

node_leases = Table(
    "node_leases",
    metadata,
    Column("node", Text, primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("pod_uid", Text, nullable=False),
    Column("allocation_id", UUID(as_uuid=False), nullable=False),
    at("expires_at"),
)
"""Node locks that are held while Redis is unavailable."""
