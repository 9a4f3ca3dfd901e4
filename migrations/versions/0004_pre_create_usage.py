"""Create tables of usage samples and their rollups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "usage_samples",
        sa.Column("sampled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device_uuid", sa.Text(), nullable=False),
        sa.Column("pod_uid", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("namespace", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("pod_name", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("container", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("memory_used_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_limit_bytes", sa.BigInteger(), nullable=True),
        sa.Column("core_percent", sa.Float(), nullable=True),
        sa.Column("core_limit_percent", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint(
            "sampled_at",
            "node",
            "device_uuid",
            "pod_uid",
            "container",
            name=op.f("pk_usage_samples"),
        ),
        postgresql_partition_by="RANGE (sampled_at)",
    )
    op.create_table(
        "usage_rollups",
        sa.Column("bucket_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bucket_s", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device_uuid", sa.Text(), nullable=False),
        sa.Column("pod_uid", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("namespace", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("pod_name", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("container", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        sa.Column("memory_used_sum_bytes", sa.Float(), nullable=True),
        sa.Column("memory_used_max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_limit_max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("core_percent_sum", sa.Float(), nullable=True),
        sa.Column("core_percent_max", sa.Float(), nullable=True),
        sa.CheckConstraint(
            "bucket_s > 0 AND sample_count > 0", name=op.f("ck_usage_rollups_not_empty")
        ),
        sa.PrimaryKeyConstraint(
            "bucket_start",
            "bucket_s",
            "node",
            "device_uuid",
            "pod_uid",
            "container",
            name=op.f("pk_usage_rollups"),
        ),
    )
    op.create_index(
        op.f("ix_usage_rollups_namespace_bucket_start"),
        "usage_rollups",
        ["namespace", "bucket_start"],
        unique=False,
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("usage_rollups")
    op.drop_table("usage_samples")
