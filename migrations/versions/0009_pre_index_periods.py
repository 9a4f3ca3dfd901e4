"""Build small indexes for questions about days and weeks, concurrently with writers.

An index that is built without stopping writers is built outside a transaction, so this migration
may fail half-way. Run again, it drops incomplete indexes and continues. It waits for older
transactions to end; no transaction waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

WHOLE = {
    "ix_allocation_events_at_brin": "allocation_events USING brin (at)",
    "ix_allocations_held": (
        "allocations USING gist (hami_held(reserved_at, ended_at),"
        " hami_text_span(node, node, '[]')) WHERE ended_at IS NOT NULL"
    ),
}
"""Name of each index -> table and columns."""

OF_DECISIONS = "(at) WHERE outcome <> 'placed'"
_PARTITIONS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'decisions'::regclass ORDER BY 1
"""


def upgrade() -> None:
    """Build the indexes."""
    for name, definition in WHOLE.items():
        _build_beside_writers(name, definition)
    for partition in _partitions():
        _build_beside_writers(f"ix_{partition}_not_placed", f"{partition} {OF_DECISIONS}")
    # From here on in a transaction, whose lock prevents changes of partitions. A partition that was
    # added before it is nearly empty.
    op.execute(f"CREATE INDEX ix_decisions_not_placed ON ONLY decisions {OF_DECISIONS}")
    for partition in _partitions():
        name = f"ix_{partition}_not_placed"
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {partition} {OF_DECISIONS}")
        op.execute(f"ALTER INDEX ix_decisions_not_placed ATTACH PARTITION {name}")
    # The planner has no statistics of an expression, and uses none of a partial index: without
    # these it assumes that half a percent of all grants are live at any moment.
    op.execute(
        "CREATE STATISTICS st_allocations_held ON (hami_held(reserved_at, ended_at))"
        " FROM allocations"
    )
    op.execute("ANALYZE allocations")


def downgrade() -> None:
    """Drop the indexes."""
    op.execute("DROP STATISTICS st_allocations_held")
    op.execute("DROP INDEX ix_decisions_not_placed")
    for name in reversed(WHOLE):
        op.execute(f"DROP INDEX {name}")


def _build_beside_writers(name: str, definition: str) -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {definition}")
        op.execute("SET lock_timeout = 500")


def _partitions() -> Sequence[str]:
    return op.get_bind().execute(sa.text(_PARTITIONS)).scalars().all()
