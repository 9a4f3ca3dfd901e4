"""Build an index for the use of a node over a time.

The primary key begins with the time, so an hour of one node read an hour of all nodes. Built
without stopping writers, one partition at a time, as in 0009; an interrupted run continues.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0010"
branch_labels = ("pre",)
depends_on = None

COLUMNS = "(node, sampled_at)"
_PARTITIONS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'usage_samples'::regclass ORDER BY 1
"""


def upgrade() -> None:
    """Build the index."""
    for partition in _partitions():
        with op.get_context().autocommit_block():
            op.execute("SET lock_timeout = 0")
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS ix_{partition}_node")
            op.execute(f"CREATE INDEX CONCURRENTLY ix_{partition}_node ON {partition} {COLUMNS}")
            op.execute("SET lock_timeout = 500")
    # From here on in a transaction, whose lock prevents changes of partitions. A partition that was
    # added before it is nearly empty.
    op.execute(f"CREATE INDEX ix_usage_samples_node_sampled_at ON ONLY usage_samples {COLUMNS}")
    for partition in _partitions():
        name = f"ix_{partition}_node"
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {partition} {COLUMNS}")
        op.execute(f"ALTER INDEX ix_usage_samples_node_sampled_at ATTACH PARTITION {name}")


def downgrade() -> None:
    """Drop the index."""
    op.execute("DROP INDEX ix_usage_samples_node_sampled_at")


def _partitions() -> Sequence[str]:
    return op.get_bind().execute(sa.text(_PARTITIONS)).scalars().all()
