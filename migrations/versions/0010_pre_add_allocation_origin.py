"""Record how a grant came into the ledger: scheduled, adopted, or requested by its node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; existing rows count as scheduled."""
    op.add_column(
        "allocations",
        sa.Column("origin", sa.Text(), server_default=sa.text("'scheduled'"), nullable=False),
        if_not_exists=True,
    )
    op.execute("ALTER TABLE allocations DROP CONSTRAINT IF EXISTS ck_allocations_origin_known")
    # In two steps, so that the rows are read without a lock that writers meet.
    op.create_check_constraint(
        op.f("ck_allocations_origin_known"),
        "allocations",
        "origin IN ('scheduled', 'adopted', 'unmanaged')",
        postgresql_not_valid=True,
    )
    with op.get_context().autocommit_block():
        op.execute("ALTER TABLE allocations VALIDATE CONSTRAINT ck_allocations_origin_known")


def downgrade() -> None:
    """Drop the column."""
    op.drop_constraint(op.f("ck_allocations_origin_known"), "allocations")
    op.drop_column("allocations", "origin")
