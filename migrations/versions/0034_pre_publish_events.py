"""Add `published_at` to `allocation_events`, so that it is its own outbox.

A change of a grant was written twice: as an event, and as a row of `outbox` that was deleted when
it was published. The previous version still does so while it runs. Its events get `published_at` by
the default: they are published from their rows of `outbox`, which both versions relay. Waiting rows
stay there, so none is lost and none is published under two ids.

History stays append-only except for this column, and retention keeps pods whose events wait or are
parked. The default, evaluated once, rewrites no row; the index is built concurrently with writes,
as in 0032.
"""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

INDEX = "ix_allocation_events_unpublished"
GUARD = """
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE {columns} OR DELETE ON allocation_events
    FOR EACH ROW EXECUTE FUNCTION hami_refuse_change()
"""
ALL_BUT_PUBLISHED = """OF id, pod_uid, sequence, allocation_id, previous_state, state, reason,
    actor, detail, at"""
# The function of 0017 is long, and nothing else of it changes.
FORGET = """
DO $$ DECLARE
    was text := pg_get_functiondef('hami_forget_grants(timestamptz, integer)'::regprocedure);
BEGIN
    IF position('{old}' IN was) = 0 THEN
        RAISE EXCEPTION 'hami_forget_grants is not that of its revision: it has no {old}';
    END IF;
    EXECUTE replace(was, '{old}', '{new}');
END $$
"""
OLD_EVENTS = "e.at >= before)"
UNSETTLED_EVENTS = "(e.at >= before OR coalesce(e.published_at, ''infinity'') = ''infinity''))"

# As the relay of this version announces them, but for the cards' counters: the version before
# compares its view with the ledger every 15 s.
BACK_TO_OUTBOX = """
INSERT INTO outbox (subject, payload, traceparent, published_at)
SELECT 'hami.events.v1.allocation.' || CASE
           WHEN e.previous_state IS DISTINCT FROM e.state THEN e.state
           WHEN e.detail ? 'from_pod_uid' THEN 'shared' WHEN e.detail ? 'after' THEN 'moved'
           ELSE e.state END,
       jsonb_build_object(
           'version', 1, 'event_id', e.id, 'allocation_id', a.id::text, 'pod_uid', a.pod_uid,
           'namespace', a.namespace, 'pod_name', a.pod_name, 'node', a.node, 'state', e.state,
           'sequence', e.sequence, 'reason', e.reason, 'at', e.at, 'counters', '[]'::jsonb),
       a.traceparent, e.published_at
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.published_at IS NULL OR e.published_at = 'infinity'
 ORDER BY e.id
"""


def upgrade() -> None:
    """Add the column and its index, and allow its change."""
    op.execute(
        "ALTER TABLE allocation_events"
        " ADD COLUMN IF NOT EXISTS published_at timestamptz DEFAULT now()"
    )
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
        op.execute(
            f"CREATE INDEX CONCURRENTLY {INDEX} ON allocation_events (id)"
            " WHERE published_at IS NULL"
        )
        op.execute("SET lock_timeout = 500")
    # One transaction from here on: a run interrupted before can be repeated.
    op.execute(GUARD.format(columns=ALL_BUT_PUBLISHED))
    op.execute(FORGET.format(old=OLD_EVENTS, new=UNSETTLED_EVENTS))
    # Left by versions that marked published rows, which nothing prunes from here on.
    op.execute("DELETE FROM outbox WHERE published_at < 'infinity'")


def downgrade() -> None:
    """Move unpublished events into the outbox, and drop the column."""
    op.execute(FORGET.format(old=UNSETTLED_EVENTS, new=OLD_EVENTS))
    op.execute("LOCK TABLE allocation_events IN EXCLUSIVE MODE")
    op.execute(BACK_TO_OUTBOX)
    op.execute(GUARD.format(columns=""))
    op.execute(f"DROP INDEX {INDEX}")
    op.execute("ALTER TABLE allocation_events DROP COLUMN published_at")
