"""Add the time in which slices had no core activity to the sums of namespaces.

A month of 16,000 pods is eleven million pod-hours: adding them up for each bill took longer than a
page waits. The column has no default, so the previous version continues to work. NULL means not
summed up yet: the metrics service fills the hours that it still has, and finds them by an index
that is empty when it is done. The table is small and written once an hour, so the index is built
without CONCURRENTLY.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

INDEX = "ix_namespace_rollups_not_idle_yet"


def upgrade() -> None:
    """Add the column."""
    op.add_column("namespace_rollups", sa.Column("idle_s", sa.Float()), if_not_exists=True)
    op.create_index(
        INDEX,
        "namespace_rollups",
        ["bucket_start"],
        postgresql_where=sa.text("bucket_s = 3600 AND idle_s IS NULL AND sample_count > 0"),
        if_not_exists=True,
    )


def downgrade() -> None:
    """Drop the column."""
    op.drop_index(INDEX)
    op.drop_column("namespace_rollups", "idle_s")
