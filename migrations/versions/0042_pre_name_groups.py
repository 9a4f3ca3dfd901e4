"""Name the group of each decision, and record decisions on whole groups beside those on pods.

A decision about all pods of a group, or of a Kueue workload, has the group's key as `pod_uid`, and
no `pod_name`. It waits for nothing: its `wait_ended_at` is its own time, so questions about pods
omit it. The index is built concurrently with writes, as in 0032; an interrupted run can be
repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

INDEX = "ix_decisions_group_key"
OF_DECISIONS = "(group_key, at) WHERE group_key IS NOT NULL"
_PARTITIONS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'decisions'::regclass ORDER BY 1
"""


def upgrade() -> None:
    """Add the columns and their index."""
    op.add_column("decisions", sa.Column("group_key", sa.Text()), if_not_exists=True)
    op.add_column("decisions", sa.Column("group_size", sa.Integer()), if_not_exists=True)
    for partition in _partitions():
        _build_beside_writers(f"ix_{partition}_group_key", f"{partition} {OF_DECISIONS}")
    # From here on in a transaction, which has a lock that keeps partitions as they are. One that
    # came in that time is nearly empty.
    op.execute(f"CREATE INDEX IF NOT EXISTS {INDEX} ON ONLY decisions {OF_DECISIONS}")
    for partition in _partitions():
        name = f"ix_{partition}_group_key"
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {partition} {OF_DECISIONS}")
        op.execute(f"ALTER INDEX {INDEX} ATTACH PARTITION {name}")


def downgrade() -> None:
    """Drop them, with the decisions that are about no pod."""
    op.execute("DELETE FROM decisions WHERE pod_uid = group_key")
    op.execute(f"DROP INDEX {INDEX}")
    op.drop_column("decisions", "group_size")
    op.drop_column("decisions", "group_key")


def _build_beside_writers(name: str, definition: str) -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {definition}")
        op.execute("SET lock_timeout = 500")


def _partitions() -> Sequence[str]:
    return op.get_bind().execute(sa.text(_PARTITIONS)).scalars().all()
