"""Drops the index of the events' times that 0009 replaced. Post: the version before still asks it.

A database that came to this revision before 0012 existed also has a constraint on `allocations`,
built under its lock; 0013 drops it.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = ("post",)
depends_on = None


def upgrade() -> None:
    """Drops it."""
    op.execute("DROP INDEX ix_allocation_events_at")


def downgrade() -> None:
    """Builds it."""
    op.create_index(op.f("ix_allocation_events_at"), "allocation_events", ["at"])
