"""Add functions that remove old history.

One function removes the grants of pods that ended long ago; a guard of the events rejects all other
removals and changes.

A pod is removed with all its attempts: as long as events exist, they are numbered from 1 without a
gap, and periods never overlap. Runs while the previous version still writes.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

MIN_DAYS = 30
"""Minimum age in days of removable grants, whatever a service requests."""

# Any user can change the setting, so removing also requires the right to delete, which the services
# lack on events: the function runs with its owner's rights.
GUARD = f"""
CREATE OR REPLACE FUNCTION hami_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_LEVEL = 'ROW' AND TG_OP = 'DELETE' THEN
        IF current_setting('hami.forgetting', true) = 'on'
           AND OLD.at < now() - interval '{MIN_DAYS} days'
           AND NOT EXISTS (SELECT FROM public.allocations
                            WHERE id = OLD.allocation_id AND ended_at IS NULL) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$
"""

# If rollups exist, grants that are not summed up yet stay: v_namespace_gpu_hours reads them.
# The walk in the order of reservation skips live grants, which are few.
FORGET = f"""
CREATE FUNCTION hami_forget_grants(before timestamptz, most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    pods text[];
    summed timestamptz;
BEGIN
    -- Of the `post` migrations; until they are applied nothing is removed.
    IF to_regclass('public.allocation_periods') IS NULL THEN
        RETURN 0;
    END IF;
    SET LOCAL lock_timeout = '200ms';
    IF NOT pg_try_advisory_xact_lock(hashtext('hami retention'), hashtext('allocations')) THEN
        RETURN 0;
    END IF;
    SELECT max(bucket_start) + interval '1 hour' INTO summed
      FROM namespace_rollups WHERE bucket_s = 3600;
    before := least(before, now() - interval '{MIN_DAYS} days', summed);
    SELECT array_agg(DISTINCT pod_uid) INTO pods FROM (
        SELECT a.pod_uid FROM allocations a
         WHERE a.reserved_at < before AND a.ended_at < before
           AND NOT EXISTS (SELECT FROM allocations other WHERE other.pod_uid = a.pod_uid
                              AND (other.ended_at IS NULL OR other.ended_at >= before))
           AND NOT EXISTS (SELECT FROM allocation_events e
                            WHERE e.pod_uid = a.pod_uid AND e.at >= before)
         ORDER BY a.reserved_at LIMIT most) oldest;
    IF pods IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM set_config('hami.forgetting', 'on', true);
    DELETE FROM allocation_events WHERE pod_uid = ANY (pods);
    PERFORM set_config('hami.forgetting', 'off', true);
    DELETE FROM allocation_periods p USING allocations a
     WHERE a.id = p.allocation_id AND a.pod_uid = ANY (pods);
    DELETE FROM allocations WHERE pod_uid = ANY (pods);
    RETURN cardinality(pods);
END $$
"""

# `hamicommon/ledger/migrations/rights.py` grants it to the scheduler.
NOBODY = "REVOKE ALL ON FUNCTION hami_forget_grants(timestamptz, integer) FROM PUBLIC"
BEFORE = """
CREATE OR REPLACE FUNCTION hami_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$
"""


def upgrade() -> None:
    """Create the functions."""
    op.execute(GUARD)
    op.execute(FORGET)
    op.execute(NOBODY)


def downgrade() -> None:
    """Drop the functions."""
    op.execute("DROP FUNCTION hami_forget_grants(timestamptz, integer)")
    op.execute(BEFORE)
