"""Create tables of nodes, cards, and changes of their health."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), server_default=sa.text("'agent'"), nullable=False),
        sa.Column("agent_id", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("agent_sequence", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("inventory_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "pair_scores",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "first_seen_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("gone_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("source IN ('agent', 'annotation')", name=op.f("ck_nodes_source_known")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_table(
        "devices",
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("vendor", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("core_percent", sa.Integer(), nullable=False),
        sa.Column("used_slots", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("used_memory_mib", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("used_core_percent", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("ceiling_slots", sa.Integer(), nullable=False),
        sa.Column("ceiling_memory_mib", sa.Integer(), nullable=False),
        sa.Column("ceiling_core_percent", sa.Integer(), nullable=False),
        sa.Column("numa", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("mode", sa.Text(), server_default=sa.text("'hami-core'"), nullable=False),
        sa.Column("healthy", sa.Boolean(), nullable=False),
        sa.Column("health_reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("cordoned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("present", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column(
            "mig_profiles",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "ceiling_core_percent >= core_percent", name=op.f("ck_devices_ceiling_cores_cover")
        ),
        sa.CheckConstraint(
            "ceiling_memory_mib >= memory_mib", name=op.f("ck_devices_ceiling_memory_cover")
        ),
        sa.CheckConstraint("ceiling_slots >= slots", name=op.f("ck_devices_ceiling_slots_cover")),
        sa.CheckConstraint(
            "used_core_percent BETWEEN 0 AND ceiling_core_percent",
            name=op.f("ck_devices_cores_within_ceiling"),
        ),
        sa.CheckConstraint(
            "used_memory_mib BETWEEN 0 AND ceiling_memory_mib",
            name=op.f("ck_devices_memory_within_ceiling"),
        ),
        sa.CheckConstraint(
            "used_slots BETWEEN 0 AND ceiling_slots", name=op.f("ck_devices_slots_within_ceiling")
        ),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_devices_node_nodes")),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_devices")),
    )
    op.create_index(op.f("ix_devices_node"), "devices", ["node"], unique=False)
    op.create_table(
        "device_health_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device_uuid", sa.Text(), nullable=False),
        sa.Column("healthy", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["device_uuid"],
            ["devices.uuid"],
            name=op.f("fk_device_health_events_device_uuid_devices"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_health_events")),
    )
    op.create_index(
        op.f("ix_device_health_events_device_uuid_at"),
        "device_health_events",
        ["device_uuid", "at"],
        unique=False,
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("device_health_events")
    op.drop_table("devices")
    op.drop_table("nodes")
