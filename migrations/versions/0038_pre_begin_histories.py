"""Check that only the first event of a grant begins its history.

A row whose pod was changed by hand had its next step in the history of the other pod, which never
had the grant. The step is refused now, and the reconciler puts the row right.
"""

from __future__ import annotations

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

REFUSES = """
CREATE OR REPLACE FUNCTION hami_refuse_gap() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before record;
    last_state text;
BEGIN
    SELECT e.allocation_id, e.state INTO before FROM allocation_events e
     WHERE e.pod_uid = NEW.pod_uid AND e.sequence = NEW.sequence - 1;
    IF NEW.sequence <> 1 AND NOT FOUND THEN
        RAISE EXCEPTION 'event % of pod % does not follow its last one', NEW.sequence, NEW.pod_uid
              USING ERRCODE = 'check_violation', TABLE = 'allocation_events',
                    CONSTRAINT = 'ck_allocation_events_gap_free';
    END IF;
    IF before.allocation_id = NEW.allocation_id THEN
        last_state := before.state;
    END IF;
    IF last_state IS DISTINCT FROM NEW.previous_state THEN
        RAISE EXCEPTION 'event % of pod % goes from %, but its last one of the grant ended in %',
              NEW.sequence, NEW.pod_uid, coalesce(NEW.previous_state, 'nothing'),
              coalesce(last_state, 'nothing')
              USING ERRCODE = 'check_violation', TABLE = 'allocation_events',
                    CONSTRAINT = 'ck_allocation_events_gap_free';
    END IF;
    RETURN NEW;
END $$
"""
REFUSES_OTHER_STATES = """
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


def upgrade() -> None:
    """Check grant and state."""
    op.execute(REFUSES)


def downgrade() -> None:
    """Check the state only if the pod's last event is of the same grant."""
    op.execute(REFUSES_OTHER_STATES)
