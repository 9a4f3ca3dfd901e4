"""Drop the index of events' times that 0009 replaced, once no older version uses it.

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
    """Drop the index."""
    op.execute("DROP INDEX ix_allocation_events_at")


def downgrade() -> None:
    """Build the index."""
    op.create_index(op.f("ix_allocation_events_at"), "allocation_events", ["at"])
