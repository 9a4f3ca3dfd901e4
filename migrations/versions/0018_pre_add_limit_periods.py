"""Add findings of nodes about exceeded limits, and each node's last check."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def _moment(name: str, *, nullable: bool = False, now: bool = False) -> sa.Column[object]:
    default = sa.text("now()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "limit_checks",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        _moment("checked_at"),
        sa.Column("containers", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_limit_checks")),
    )
    op.create_table(
        "limit_periods",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pod_name", sa.Text(), nullable=False),
        _text("container"),
        sa.Column("device_uuid", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        _text("reason"),
        _moment("began_at"),
        _moment("ended_at", nullable=True),
        _moment("recorded_at", now=True),
        _moment("seen_at"),
        sa.Column("held_mib", sa.Integer(), nullable=True),
        sa.Column("peak_mib", sa.Integer(), nullable=False),
        sa.Column("granted_mib", sa.Integer(), nullable=False),
        _moment("evicting_at", nullable=True),
        _moment("evicted_at", nullable=True),
        _text("eviction_problem"),
        sa.CheckConstraint(
            "state IN ('exceeded', 'bypassed', 'unknown')",
            name=op.f("ck_limit_periods_state_known"),
        ),
        sa.CheckConstraint(
            "ended_at IS NULL OR ended_at >= began_at",
            name=op.f("ck_limit_periods_ends_after_it_began"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_limit_periods")),
    )
    op.create_index(
        "uq_limit_periods_open",
        "limit_periods",
        ["node", "pod_uid", "container", "device_uuid"],
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(op.f("ix_limit_periods_pod_uid"), "limit_periods", ["pod_uid"])
    op.create_index(op.f("ix_limit_periods_began_at"), "limit_periods", ["began_at"])


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("limit_periods")
    op.drop_table("limit_checks")
