"""Reduce writes per pod: index live rows by `ended_at` in place of their state.

A step between two live states then touches no index but that of deadlines, so most are HOT updates;
free space in the pages of `allocations` and `devices` keeps them so. The rows of the outbox live
for milliseconds, so it is vacuumed by their number. Built beside the writers, as in 0015; the
version before finds a pod's live row by (pod_uid, attempt) and reads all of them by a scan.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

BEFORE = "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')"
AFTER = "ended_at IS NULL"
INDEXES = {
    "uq_allocations_live_pod": ("UNIQUE INDEX", "(pod_uid)"),
    "ix_allocations_live_node": ("INDEX", "(node)"),
}
SETTINGS = {
    "allocations": {"fillfactor": "80"},
    "devices": {"fillfactor": "50"},
    "outbox": {
        "autovacuum_vacuum_scale_factor": "0",
        "autovacuum_vacuum_threshold": "2000",
        "autovacuum_vacuum_cost_delay": "0",
    },
}


def upgrade() -> None:
    """Build the indexes, and set fill factor and vacuum parameters."""
    _build(AFTER)
    for table, settings in SETTINGS.items():
        values = ", ".join(f"{name} = {value}" for name, value in settings.items())
        op.execute(f"ALTER TABLE {table} SET ({values})")


def downgrade() -> None:
    """Restore the earlier indexes and parameters."""
    for table, settings in SETTINGS.items():
        op.execute(f"ALTER TABLE {table} RESET ({', '.join(settings)})")
    _build(BEFORE)


def _build(live: str) -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        for name, (kind, columns) in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}_next")
            op.execute(
                f"CREATE {kind} CONCURRENTLY {name}_next ON allocations {columns} WHERE {live}"
            )
        op.execute("SET lock_timeout = 500")
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
        op.execute(f"ALTER INDEX {name}_next RENAME TO {name}")
