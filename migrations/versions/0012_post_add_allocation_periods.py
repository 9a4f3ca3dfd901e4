"""Add periods of ended grants, with a constraint that those of a pod never overlap.

Adding an exclusion constraint to a full table would lock it while every row is checked, so the
constraint is on a separate, empty table; 0013 fills it. A grant's period is written when it ends.
While the grant lives, the partial unique index keeps it the pod's only one, and a trigger checks
that it began after all ended ones. First attempts, which nearly all grants are, run no trigger.

Post: code before 0008 may begin a grant before the end of the pod's last one, after a clock was set
back. Locks `allocations` for a moment, to add triggers.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# GiST has no `=` of text without an extension, and a server need not have one. A tree's pages can
# separate numbers, but not ranges of text (no distance is known between texts). Two different pods
# with the same 126 bits do not occur in practice. Not STRICT, which would prevent inlining.
POINT = """
CREATE FUNCTION hami_point(name text, seed bigint) RETURNS int8range
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT int8range(hashtextextended(name, seed) >> 1, hashtextextended(name, seed) >> 1, '[]')
$$
"""

KEEP = """
CREATE FUNCTION hami_keep_period() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' AND EXISTS (
        SELECT FROM allocations other
         WHERE other.pod_uid = NEW.pod_uid AND other.id <> NEW.id
           AND hami_held(other.reserved_at, other.ended_at)
               && hami_held(NEW.reserved_at, NEW.ended_at)) THEN
        RAISE EXCEPTION 'a grant of pod % overlaps another one', NEW.pod_uid
              USING ERRCODE = 'exclusion_violation', TABLE = 'allocations',
                    CONSTRAINT = 'ex_allocation_periods_one_grant_at_a_time';
    END IF;
    IF NEW.ended_at IS NOT NULL THEN
        INSERT INTO allocation_periods (allocation_id, pod_uid, held)
        VALUES (NEW.id, NEW.pod_uid, hami_held(NEW.reserved_at, NEW.ended_at))
        ON CONFLICT (allocation_id) DO UPDATE SET held = excluded.held;
    END IF;
    RETURN NULL;
END $$
"""

BEGUN = """
CREATE TRIGGER period_begun AFTER INSERT ON allocations FOR EACH ROW
WHEN (NEW.attempt > 1 OR NEW.ended_at IS NOT NULL) EXECUTE FUNCTION hami_keep_period()
"""
ENDED = """
CREATE TRIGGER period_ended AFTER UPDATE OF ended_at ON allocations FOR EACH ROW
WHEN (NEW.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at)
EXECUTE FUNCTION hami_keep_period()
"""

READER = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'hami_reader') THEN
        GRANT SELECT ON allocation_periods TO hami_reader;
    END IF;
END $$
"""


def upgrade() -> None:
    """Add table and triggers."""
    op.execute(POINT)
    op.create_table(
        "allocation_periods",
        sa.Column("allocation_id", postgresql.UUID(as_uuid=False), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("held", postgresql.TSTZRANGE(), nullable=False),
        sa.PrimaryKeyConstraint("allocation_id", name=op.f("pk_allocation_periods")),
        postgresql.ExcludeConstraint(
            (sa.text("hami_point(pod_uid, 0)"), "&&"),
            (sa.text("hami_point(pod_uid, 1)"), "&&"),
            ("held", "&&"),
            name="ex_allocation_periods_one_grant_at_a_time",
            using="gist",
        ),
    )
    for statement in (KEEP, BEGUN, ENDED, READER):
        op.execute(statement)


def downgrade() -> None:
    """Drop table and triggers."""
    op.execute("DROP TRIGGER period_ended ON allocations")
    op.execute("DROP TRIGGER period_begun ON allocations")
    op.execute("DROP FUNCTION hami_keep_period()")
    op.drop_table("allocation_periods")
    op.execute("DROP FUNCTION hami_point(text, bigint)")
