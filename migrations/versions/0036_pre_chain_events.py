"""Check that an event starts from the state in which the grant's last one ended.

A row whose state was changed by hand had its next step in the history under the wrong state, for
good, because events can't be changed. The step is refused now, and the reconciler puts the row
right. The trigger read the pod's last event already.
"""

from __future__ import annotations

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

REFUSES = """
CREATE OR REPLACE FUNCTION hami_refuse_gap() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before record;
BEGIN
    SELECT e.allocation_id, e.state INTO before FROM allocation_events e
     WHERE e.pod_uid = NEW.pod_uid AND e.sequence = NEW.sequence - 1;
    IF NEW.sequence <> 1 AND NOT FOUND THEN
        RAISE EXCEPTION 'event % of pod % does not follow its last one', NEW.sequence, NEW.pod_uid
              USING ERRCODE = 'check_violation', TABLE = 'allocation_events',
                    CONSTRAINT = 'ck_allocation_events_gap_free';
    END IF;
    IF before.allocation_id = NEW.allocation_id AND before.state IS DISTINCT FROM NEW.previous_state
    THEN
        RAISE EXCEPTION 'event % of pod % goes from %, but its last one ended in %', NEW.sequence,
              NEW.pod_uid, coalesce(NEW.previous_state, 'nothing'), before.state
              USING ERRCODE = 'check_violation', TABLE = 'allocation_events',
                    CONSTRAINT = 'ck_allocation_events_gap_free';
    END IF;
    RETURN NEW;
END $$
"""
REFUSES_GAPS = """
CREATE OR REPLACE FUNCTION hami_refuse_gap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.sequence <> 1 AND NOT EXISTS (
        SELECT FROM allocation_events e
         WHERE e.pod_uid = NEW.pod_uid AND e.sequence = NEW.sequence - 1) THEN
        RAISE EXCEPTION 'event % of pod % does not follow its last one', NEW.sequence, NEW.pod_uid
              USING ERRCODE = 'check_violation', TABLE = 'allocation_events',
                    CONSTRAINT = 'ck_allocation_events_gap_free';
    END IF;
    RETURN NEW;
END $$
"""


def upgrade() -> None:
    """Check the states."""
    op.execute(REFUSES)


def downgrade() -> None:
    """Check only the numbers."""
    op.execute(REFUSES_GAPS)
