"""Tables of allocations with their cards, containers, claims and events."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSTZRANGE, UUID, ExcludeConstraint

from hamicommon.ledger.tables.columns import (
    HELD,
    LIVE,
    MAX_COUNTER,
    ONE_GRANT_AT_A_TIME,
    ONE_LIVE_PER_POD,
    at,
    metadata,
    objects,
    texts,
)

allocation_tokens = Sequence("allocation_tokens", metadata=metadata)
"""Sequence of fencing tokens, drawn when binding begins."""

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
    texts("traceparent"),
    texts("reason"),
    at("reserved_at", default=True),
    at("binding_at", nullable=True),
    at("bound_at", nullable=True),
    at("allocated_at", nullable=True),
    at("ended_at", nullable=True),
    at("deadline", nullable=True),
    at("lock_deadline", nullable=True),
    objects("annotations"),
    Column("origin", Text, nullable=False, server_default=text("'scheduled'")),
    Column("owner_kind", Text),
    Column("owner_name", Text),
    Column("owner_uid", Text),
    Column("deployment", Text),
    Column("service_account", Text),
    Column("created_by", Text),
    Column("labels", JSONB),
    UniqueConstraint("pod_uid", "attempt"),
    CheckConstraint(
        "origin IN ('scheduled', 'adopted', 'unmanaged', 'claim')", name="origin_known"
    ),
    CheckConstraint(
        "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing', 'released', "
        "'expired', 'failed', 'released_unconfirmed')",
        name="state_known",
    ),
    CheckConstraint(f"({LIVE}) = (ended_at IS NULL)", name="ended_when_not_live"),
    CheckConstraint(f"token BETWEEN 1 AND {MAX_COUNTER}", name="token_bounded"),
    CheckConstraint(f"attempt BETWEEN 1 AND {2**30 - 1}", name="attempt_bounded"),
    CheckConstraint("jsonb_typeof(annotations) = 'object'", name="annotations_object"),
    # Not by the state: a step from one live state to another must touch no index.
    Index(ONE_LIVE_PER_POD, "pod_uid", unique=True, postgresql_where=text("ended_at IS NULL")),
    Index("ix_allocations_live_node", "node", postgresql_where=text("ended_at IS NULL")),
    Index("ix_allocations_deadline", "deadline", postgresql_where=text("deadline IS NOT NULL")),
    Index(None, "namespace", "pod_name"),
    Index("ix_allocations_reserved_pod", "reserved_at", postgresql_include=["pod_uid"]),
    Index(
        "ix_allocations_creator",
        "created_by",
        "reserved_at",
        postgresql_where=text("created_by IS NOT NULL"),
    ),
    Index(
        "ix_allocations_held",
        text(HELD),
        text("hami_text_span(node, node, '[]')"),
        postgresql_using="gist",
        postgresql_where=text("ended_at IS NOT NULL"),
    ),
)
"""Allocations: attempts to give a pod its slices; at most one live row per pod.

The columns from `owner_kind` on are `hamicommon.domain.pod_ref.PodOwner`; NULL is unknown (a row
of before 0020, a grant that was restored from its pod), an empty text is none.
"""

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
"""Periods of ended grants, which never overlap for a pod; written by triggers of 0012.

It has no foreign key to `allocations`, which would lock a row there for each row here.
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
    texts("type"),
    objects("detail"),
    Column("sidecar", Boolean),
    PrimaryKeyConstraint("allocation_id", "container_index", "position"),
    CheckConstraint("slots > 0", name="slots_positive"),
    CheckConstraint("role IN ('init', 'app')", name="role_known"),
    CheckConstraint("least(memory_mib, core_percent) >= 0", name="amounts_not_negative"),
    CheckConstraint("jsonb_typeof(detail) = 'object'", name="detail_object"),
    Index(None, "device_uuid"),
)
"""Cards of each container; a card's counters have the sum per allocation, as `footprint` makes it.

`sidecar`: the container starts before the init containers that are declared after it, and runs
beside them; its role is `app`. NULL (unknown) in rows from before 0033: their grants are counted as
they were then.
"""

allocation_claims = Table(
    "allocation_claims",
    metadata,
    Column(
        "allocation_id",
        UUID(as_uuid=False),
        ForeignKey("allocations.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("container_index", SmallInteger, nullable=False),
    Column("position", SmallInteger, nullable=False),
    Column("claim_uid", Text, nullable=False),
    Column("claim_name", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("share_id", Text, nullable=False),
    Column("device_uuid", Text, nullable=False),
    Column("vendor", Text, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("core_percent", Integer, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("counted", Boolean, nullable=False),
    PrimaryKeyConstraint("allocation_id", "container_index", "position"),
    CheckConstraint("least(slots, memory_mib, core_percent) >= 0", name="amounts_not_negative"),
    Index(None, "claim_uid"),
)
"""Slices that containers use by ResourceClaims; pods that share a claim have rows each.

Such a slice is one budget. It is `counted` for one of its holders at a time, which has it in
`allocation_devices`, and in the counters of the card, too.
"""

preempted = Table(
    "preempted",
    metadata,
    *(
        Column(
            name,
            UUID(as_uuid=False),
            ForeignKey("allocations.id", ondelete="CASCADE"),
            nullable=False,
        )
        for name in ("room_id", "victim_id")
    ),
    Column("room_priority", Integer, nullable=False),
    Column("victim_priority", Integer, nullable=False),
    at("planned_at", default=True),
    at("evicted_at", nullable=True),
    texts("problem"),
    PrimaryKeyConstraint("room_id", "victim_id"),
    Index(None, "victim_id"),
    Index(None, "planned_at"),
)
"""Grants whose pods end for a room: a grant in state `reserved`, which waits until they are gone.

`evicted_at` is NULL until the API server has taken the eviction; `problem` has why it did not.
"""

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
"""Containers of each pod in spec order, also those without a card (for annotations)."""

allocation_events = Table(
    "allocation_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("pod_uid", Text, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("allocation_id", UUID(as_uuid=False), ForeignKey("allocations.id"), nullable=False),
    Column("previous_state", Text),
    Column("state", Text, nullable=False),
    texts("reason"),
    texts("actor"),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    at("at", default=True),
    at("published_at", nullable=True, default=True),
    UniqueConstraint("pod_uid", "sequence"),
    Index(None, "allocation_id"),
    Index("ix_allocation_events_unpublished", "id", postgresql_where=text("published_at IS NULL")),
    # Rows come in the order of time, so a summary of each run of pages is enough.
    Index("ix_allocation_events_at_brin", "at", postgresql_using="brin"),
)
"""Changes of allocations' states, append-only; `sequence` is gap-free per pod, from 1.

Only `published_at` changes: NULL until the relay has announced the event, `infinity` for an event
that the bus refuses. A step to `binding` is written with it set, because only its outcome is
announced.
"""
