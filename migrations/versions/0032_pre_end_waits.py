"""Record the end of a refused pod's wait, which was taken as ten minutes before.

The scheduler writes `infinity` with each refusal, and later when and how the wait ended, as the pod
watch shows it. Rows of the previous version have `-infinity`: for them the ten minutes still apply.
A constant default rewrites no row. The index finds the few waiting pods; it is built concurrently
with writes, as in 0015, and an interrupted run can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

OF_DECISIONS = "(wait_ended_at) WHERE outcome <> 'placed'"
_PARTITIONS = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'decisions'::regclass ORDER BY 1
"""
# As in 0008; a pod whose wait has ended is left out.
PENDING = """
CREATE OR REPLACE VIEW v_pending_reasons AS
SELECT d.pod_uid, d.namespace, d.pod_name, d.message, d.reason_counts,
       d.candidates, d.repeat_count, d.at AS since, d.last_at, d.summary
FROM decisions d
WHERE d.outcome <> 'placed'{waits}
  AND NOT EXISTS (SELECT FROM decisions later
                  WHERE later.pod_uid = d.pod_uid AND later.at >= d.at
                    AND (later.at, later.id) > (d.at, d.id))
  AND NOT EXISTS (SELECT FROM allocations a
                  WHERE a.pod_uid = d.pod_uid AND a.ended_at IS NULL)
"""
WAITS = """
  AND (d.wait_ended_at > now()
       OR (d.wait_ended_at = '-infinity' AND d.last_at > now() - interval '10 minutes'))"""


def upgrade() -> None:
    """Add the columns, their index and the condition."""
    op.add_column(
        "decisions",
        sa.Column(
            "wait_ended_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("'-infinity'::timestamptz"),
            nullable=False,
        ),
        if_not_exists=True,
    )
    op.add_column("decisions", sa.Column("wait_end", sa.Text()), if_not_exists=True)
    op.execute(PENDING.format(waits=WAITS))
    for partition in _partitions():
        _build_beside_writers(f"ix_{partition}_wait_end", f"{partition} {OF_DECISIONS}")
    # From here on in a transaction, which has a lock that keeps partitions as they are. One that
    # came in that time is nearly empty.
    op.execute(f"CREATE INDEX IF NOT EXISTS ix_decisions_wait_end ON ONLY decisions {OF_DECISIONS}")
    for partition in _partitions():
        name = f"ix_{partition}_wait_end"
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {partition} {OF_DECISIONS}")
        op.execute(f"ALTER INDEX ix_decisions_wait_end ATTACH PARTITION {name}")


def downgrade() -> None:
    """Drop the columns, their index and the condition."""
    op.execute("DROP INDEX ix_decisions_wait_end")
    op.execute(PENDING.format(waits=""))
    op.drop_column("decisions", "wait_end")
    op.drop_column("decisions", "wait_ended_at")


def _build_beside_writers(name: str, definition: str) -> None:
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {definition}")
        op.execute("SET lock_timeout = 500")


def _partitions() -> Sequence[str]:
    return op.get_bind().execute(sa.text(_PARTITIONS)).scalars().all()
