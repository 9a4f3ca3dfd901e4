"""Add owners of pods: controller, service account, creator, labels; unknown for old grants.

Columns without a default and a view with more columns: the version before works on beside them. An
index for "what did this user run" is built beside the writers, as in 0009; of older grants it has
none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TEXTS = ("owner_kind", "owner_name", "owner_uid", "deployment", "service_account", "created_by")

HISTORY = """
CREATE OR REPLACE VIEW v_allocation_history AS
SELECT a.id AS allocation_id, a.namespace, a.pod_name, a.pod_uid, a.attempt, a.node,
       d.container_name, d.role, d.device_uuid, d.memory_mib, d.core_percent,
       a.state, a.reason, a.reserved_at, a.bound_at, a.allocated_at, a.ended_at,
       hami_held(a.reserved_at, a.ended_at) AS held, {owner}
FROM allocations a JOIN allocation_devices d ON d.allocation_id = a.id
"""
OWNER = ", ".join(f"a.{name}" for name in (*TEXTS, "labels"))
# A view can't lose columns while functions return its rows, so they stay, and know nothing.
UNKNOWN = ", ".join((*(f"NULL::text AS {name}" for name in TEXTS), "NULL::jsonb AS labels"))

INDEX = "ix_allocations_creator"
ON = "allocations (created_by, reserved_at) WHERE created_by IS NOT NULL"


def upgrade() -> None:
    """Add the columns."""
    for name in TEXTS:
        op.add_column("allocations", sa.Column(name, sa.Text()), if_not_exists=True)
    op.add_column("allocations", sa.Column("labels", postgresql.JSONB()), if_not_exists=True)
    op.execute(HISTORY.format(owner=OWNER))
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
        op.execute(f"CREATE INDEX CONCURRENTLY {INDEX} ON {ON}")
        op.execute("SET lock_timeout = 500")


def downgrade() -> None:
    """Drop the columns; their content is lost."""
    op.execute(f"DROP INDEX {INDEX}")
    op.execute(HISTORY.format(owner=UNKNOWN))
    for name in (*TEXTS, "labels"):
        op.drop_column("allocations", name)
