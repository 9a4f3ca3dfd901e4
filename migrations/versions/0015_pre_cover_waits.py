"""Build two indexes from which waiting times of pods are read without the tables.

Both replace the same index without these columns. They are built without stopping writers, as in
0009; an interrupted run continues.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

RESERVED = "allocations (reserved_at) INCLUDE (pod_uid)"
OF_DECISIONS = "(at) INCLUDE (pod_uid, namespace) WHERE outcome <> 'placed'"
_PARTITIONS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'decisions'::regclass ORDER BY 1
"""


def upgrade() -> None:
    """Build the new indexes, and drop the old ones."""
    _build_beside_writers("ix_allocations_reserved_pod", RESERVED)
    for partition in _partitions():
        _build_beside_writers(f"ix_{partition}_waited", f"{partition} {OF_DECISIONS}")
    # From here on in a transaction, whose lock prevents changes of partitions. A partition that was
    # added before it is nearly empty.
    op.execute(f"CREATE INDEX ix_decisions_waited ON ONLY decisions {OF_DECISIONS}")
    for partition in _partitions():
        name = f"ix_{partition}_waited"
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {partition} {OF_DECISIONS}")
        op.execute(f"ALTER INDEX ix_decisions_waited ATTACH PARTITION {name}")
    op.execute("DROP INDEX ix_decisions_not_placed")
    op.execute("DROP INDEX ix_allocations_reserved_at")


def downgrade() -> None:
    """Build the old indexes, and drop the new ones."""
    op.create_index(op.f("ix_allocations_reserved_at"), "allocations", ["reserved_at"])
    op.execute("CREATE INDEX ix_decisions_not_placed ON decisions (at) WHERE outcome <> 'placed'")
    op.execute("DROP INDEX ix_decisions_waited")
    op.execute("DROP INDEX ix_allocations_reserved_pod")


def _build_beside_writers(name: str, definition: str) -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {definition}")
        op.execute("SET lock_timeout = 500")


def _partitions() -> Sequence[str]:
    return op.get_bind().execute(sa.text(_PARTITIONS)).scalars().all()
