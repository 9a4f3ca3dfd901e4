"""Add a group of nodes, such as their rack, by which pages and lists group them.

A column without a default: the version before works on beside it. NULL: the Node object has none of
the labels, or the scheduler has not written it yet.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("nodes", sa.Column("node_group", sa.Text()), if_not_exists=True)


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("nodes", "node_group")
