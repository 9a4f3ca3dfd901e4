"""Add the periods of grants that ended before the triggers of 0012 existed.

Post, as 0012. Fills some thousand rows at a time, each time in a separate transaction, and takes no
lock that blocks a writer; an interrupted run continues. It ends with an error if two grants of a
pod overlap, which no version of ours writes. If an earlier 0011 put the constraint on `allocations`
itself, that constraint is dropped, because every change of a grant paid for it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

BATCH = 5000
"""Rows per transaction, about a quarter of a second."""
FIRST = "00000000-0000-0000-0000-000000000000"

FILL = f"""
WITH batch AS (
    SELECT id, pod_uid, reserved_at, ended_at FROM allocations
     WHERE id > CAST(:after AS uuid) ORDER BY id LIMIT {BATCH}
), filled AS (
    INSERT INTO allocation_periods (allocation_id, pod_uid, held)
    SELECT id, pod_uid, hami_held(reserved_at, ended_at) FROM batch WHERE ended_at IS NOT NULL
    ON CONFLICT (allocation_id) DO NOTHING
)
SELECT id::text FROM batch ORDER BY id DESC LIMIT 1
"""

REPLACED = """
SELECT EXISTS (SELECT FROM pg_constraint WHERE conname = 'ex_allocations_one_grant_at_a_time')
"""


def upgrade() -> None:
    """Fill the table, and drop the constraint that it replaces."""
    with op.get_context().autocommit_block():
        after: str | None = FIRST
        while after is not None:
            after = op.get_bind().execute(sa.text(FILL), {"after": after}).scalar()
        op.execute("ANALYZE allocation_periods")
    # Checked first: dropping a missing constraint would lock the table anyway.
    if op.get_bind().execute(sa.text(REPLACED)).scalar():
        op.execute("ALTER TABLE allocations DROP CONSTRAINT ex_allocations_one_grant_at_a_time")


def downgrade() -> None:
    """Leave the filled rows: they stay until 0012 goes."""
