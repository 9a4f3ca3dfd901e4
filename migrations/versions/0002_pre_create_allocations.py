"""Create tables of allocations, their slices and their history."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.execute(sa.schema.CreateSequence(sa.Sequence("allocation_tokens")))
    op.create_table(
        "allocations",
        sa.Column("id", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pod_name", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=True),
        sa.Column(
            "policy",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("score", sa.Float(), server_default=sa.text("0"), nullable=False),
        sa.Column("traceparent", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column(
            "reserved_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("binding_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("bound_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("allocated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lock_deadline", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing'))"
            " = (ended_at IS NULL)",
            name=op.f("ck_allocations_ended_when_not_live"),
        ),
        sa.CheckConstraint(
            "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing', 'released', "
            "'expired', 'failed', 'released_unconfirmed')",
            name=op.f("ck_allocations_state_known"),
        ),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_allocations_node_nodes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocations")),
        sa.UniqueConstraint("pod_uid", "attempt", name=op.f("uq_allocations_pod_uid_attempt")),
    )
    op.create_index(
        "ix_allocations_deadline",
        "allocations",
        ["deadline"],
        unique=False,
        postgresql_where=sa.text("deadline IS NOT NULL"),
    )
    op.create_index(
        "ix_allocations_live_node",
        "allocations",
        ["node"],
        unique=False,
        postgresql_where=sa.text(
            "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')"
        ),
    )
    op.create_index(
        op.f("ix_allocations_namespace_pod_name"),
        "allocations",
        ["namespace", "pod_name"],
        unique=False,
    )
    op.create_index(
        op.f("ix_allocations_reserved_at"), "allocations", ["reserved_at"], unique=False
    )
    op.create_index(
        "uq_allocations_live_pod",
        "allocations",
        ["pod_uid"],
        unique=True,
        postgresql_where=sa.text(
            "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')"
        ),
    )
    op.create_table(
        "allocation_containers",
        sa.Column("allocation_id", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("container_index", sa.SmallInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["allocation_id"],
            ["allocations.id"],
            name=op.f("fk_allocation_containers_allocation_id_allocations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "allocation_id", "container_index", name=op.f("pk_allocation_containers")
        ),
    )
    op.create_table(
        "allocation_devices",
        sa.Column("allocation_id", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("container_index", sa.SmallInteger(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("container_name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("device_uuid", sa.Text(), nullable=False),
        sa.Column("vendor", sa.Text(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("core_percent", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "role IN ('init', 'app')", name=op.f("ck_allocation_devices_role_known")
        ),
        sa.ForeignKeyConstraint(
            ["allocation_id"],
            ["allocations.id"],
            name=op.f("fk_allocation_devices_allocation_id_allocations"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["device_uuid"],
            ["devices.uuid"],
            name=op.f("fk_allocation_devices_device_uuid_devices"),
        ),
        sa.PrimaryKeyConstraint(
            "allocation_id", "container_index", "position", name=op.f("pk_allocation_devices")
        ),
    )
    op.create_index(
        op.f("ix_allocation_devices_device_uuid"),
        "allocation_devices",
        ["device_uuid"],
        unique=False,
    )
    op.create_table(
        "allocation_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("allocation_id", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("previous_state", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("actor", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column(
            "detail",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["allocation_id"],
            ["allocations.id"],
            name=op.f("fk_allocation_events_allocation_id_allocations"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocation_events")),
        sa.UniqueConstraint(
            "pod_uid", "sequence", name=op.f("uq_allocation_events_pod_uid_sequence")
        ),
    )
    op.create_index(
        op.f("ix_allocation_events_allocation_id"),
        "allocation_events",
        ["allocation_id"],
        unique=False,
    )
    op.create_index(op.f("ix_allocation_events_at"), "allocation_events", ["at"], unique=False)
    op.create_table(
        "node_leases",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("allocation_id", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_node_leases")),
    )
    op.create_table(
        "quotas",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("limit_amount", sa.BigInteger(), nullable=True),
        sa.Column("used_amount", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("used_amount >= 0", name=op.f("ck_quotas_used_not_negative")),
        sa.PrimaryKeyConstraint("namespace", "resource", name=op.f("pk_quotas")),
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("quotas")
    op.drop_table("node_leases")
    op.drop_table("allocation_events")
    op.drop_table("allocation_devices")
    op.drop_table("allocation_containers")
    op.drop_table("allocations")
    op.execute(sa.schema.DropSequence(sa.Sequence("allocation_tokens")))
