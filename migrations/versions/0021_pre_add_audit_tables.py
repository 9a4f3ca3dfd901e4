"""Add tables of refusals at admission and of operators' calls."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

MIN_DAYS = 30
"""Minimum age in days of removable calls, whatever a service asks for (as in 0017)."""

# A call is written as it begins, its outcome when it ends; of one that was refused the same again
# is counted. Nothing else changes.
GUARD = f"""
CREATE FUNCTION hami_guard_calls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_LEVEL = 'ROW' AND TG_OP = 'DELETE' THEN
        IF OLD.at < now() - interval '{MIN_DAYS} days' THEN
            RETURN OLD;
        END IF;
    ELSIF TG_LEVEL = 'ROW' THEN
        IF (NEW.id, NEW.at, NEW.groups, NEW.source, NEW.address, NEW.verb, NEW.object)
           = (OLD.id, OLD.at, OLD.groups, OLD.source, OLD.address, OLD.verb, OLD.object)
           AND NEW.username IS NOT DISTINCT FROM OLD.username
           AND (OLD.outcome = 'begun'
                OR (OLD.outcome = 'refused' AND NEW.outcome = 'refused'
                    AND NEW.message = OLD.message AND NEW.repeat_count > OLD.repeat_count)) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$
"""
ROWS = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON operator_calls
FOR EACH ROW EXECUTE FUNCTION hami_guard_calls()
"""
TRUNCATE = """
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON operator_calls
FOR EACH STATEMENT EXECUTE FUNCTION hami_guard_calls()
"""


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "admission_refusals",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column(
            "groups", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False
        ),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pod_name", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)
            for name in ("owner_kind", "owner_name", "service_account")
        ),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("repeat_count", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("other_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "reviews",
            sa.ARRAY(sa.BigInteger()),
            server_default=sa.text("'{}'::bigint[]"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admission_refusals")),
    )
    op.create_index(op.f("ix_admission_refusals_at"), "admission_refusals", ["at"])
    op.create_index(
        op.f("ix_admission_refusals_username_namespace_at"),
        "admission_refusals",
        ["username", "namespace", "at"],
    )
    op.create_table(
        "operator_calls",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("username", sa.Text(), nullable=True),
        sa.Column(
            "groups", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False
        ),
        *(
            sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)
            for name in ("source", "address")
        ),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("repeat_count", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.CheckConstraint(
            "outcome IN ('begun', 'done', 'failed', 'refused')",
            name=op.f("ck_operator_calls_outcome_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operator_calls")),
    )
    op.create_index(op.f("ix_operator_calls_at"), "operator_calls", ["at"])
    for statement in (GUARD, ROWS, TRUNCATE):
        op.execute(statement)


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("operator_calls")
    op.execute("DROP FUNCTION hami_guard_calls()")
    op.drop_table("admission_refusals")
