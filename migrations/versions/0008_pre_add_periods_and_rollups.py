"""Add periods, rollups of namespaces and views, for questions about a month.

Runs while the previous version still writes: a new table, functions, a trigger and views, which
wait for their locks at most a second. The answers of the views stay the same.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# Half-open, without end while the allocation lives; empty if a clock was set back.
HELD = """
CREATE FUNCTION hami_held(reserved_at timestamptz, ended_at timestamptz) RETURNS tstzrange
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT tstzrange(reserved_at, CASE WHEN ended_at < reserved_at THEN reserved_at
                                       ELSE ended_at END)
$$
"""

# The numbers of a pod's events are 1, 2, 3, ... whichever service writes them.
GAP_FREE = """
CREATE FUNCTION hami_refuse_gap() RETURNS trigger LANGUAGE plpgsql AS $$
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

HISTORY = """
CREATE OR REPLACE VIEW v_allocation_history AS
SELECT a.id AS allocation_id, a.namespace, a.pod_name, a.pod_uid, a.attempt, a.node,
       d.container_name, d.role, d.device_uuid, d.memory_mib, d.core_percent,
       a.state, a.reason, a.reserved_at, a.bound_at, a.allocated_at, a.ended_at{more}
FROM allocations a JOIN allocation_devices d ON d.allocation_id = a.id
"""

# Ended and live rows separately: each half has its own index (ix_allocations_held of 0009 and
# ix_allocations_live_node).
AT = """
CREATE OR REPLACE FUNCTION allocations_at(at timestamptz) RETURNS SETOF v_allocation_history
LANGUAGE sql STABLE AS $$
    SELECT * FROM v_allocation_history h WHERE h.ended_at IS NOT NULL AND h.held @> at
    UNION ALL
    SELECT * FROM v_allocation_history h
     WHERE h.state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')
       AND h.reserved_at <= at
$$
"""
AT_BEFORE = """
CREATE OR REPLACE FUNCTION allocations_at(at timestamptz) RETURNS SETOF v_allocation_history
LANGUAGE sql STABLE AS $$
    SELECT * FROM v_allocation_history h
    WHERE h.reserved_at <= at AND (h.ended_at IS NULL OR h.ended_at > at)
$$
"""
BETWEEN = """
CREATE FUNCTION allocations_between("from" timestamptz, until timestamptz)
RETURNS SETOF v_allocation_history LANGUAGE sql STABLE AS $$
    SELECT * FROM v_allocation_history h
     WHERE h.ended_at IS NOT NULL AND h.held && tstzrange("from", until)
    UNION ALL
    SELECT * FROM v_allocation_history h
     WHERE h.state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')
       AND h.reserved_at < until
$$
"""

# Full hours come from the rollups; time that is not summed up yet, from the grants themselves.
GPU_HOURS = """
CREATE VIEW v_namespace_gpu_hours AS
WITH summed AS (
    SELECT max(bucket_start) + interval '1 hour' AS until FROM namespace_rollups
     WHERE bucket_s = 3600
), parts AS (
    SELECT namespace, date_trunc('day', bucket_start, 'UTC') AS day, slice_s, card_s
      FROM namespace_rollups WHERE bucket_s = 3600
    UNION ALL
    SELECT a.namespace, day,
           seconds * x.slots, seconds * x.memory_mib / nullif(d.memory_mib, 0)
      FROM summed CROSS JOIN LATERAL (
               SELECT * FROM allocations
                WHERE state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')
               UNION ALL
               SELECT * FROM allocations
                WHERE ended_at IS NOT NULL
                  AND hami_held(reserved_at, ended_at) && tstzrange(summed.until, NULL)) a
      JOIN allocation_devices x ON x.allocation_id = a.id AND x.role = 'app'
      JOIN devices d ON d.uuid = x.device_uuid
      CROSS JOIN LATERAL generate_series(
               date_trunc('day', greatest(a.reserved_at, summed.until), 'UTC'),
               coalesce(a.ended_at, now()), interval '1 day') AS day
      CROSS JOIN LATERAL (
               SELECT extract(epoch FROM
                        least(coalesce(a.ended_at, now()), day + interval '1 day')
                        - greatest(a.reserved_at, summed.until, day))::float8 AS seconds) t
     WHERE seconds > 0
)
SELECT namespace, day, sum(slice_s) / 3600 AS slice_hours,
       sum(card_s) / 3600 AS card_hours_by_memory
  FROM parts GROUP BY namespace, day
"""
GPU_HOURS_BEFORE = """
CREATE VIEW v_namespace_gpu_hours AS
SELECT a.namespace, date_trunc('day', hour, 'UTC') AS day,
       sum(extract(epoch FROM least(coalesce(a.ended_at, now()), hour + interval '1 hour')
                   - greatest(a.reserved_at, hour)) / 3600.0) AS slice_hours,
       sum(extract(epoch FROM least(coalesce(a.ended_at, now()), hour + interval '1 hour')
                   - greatest(a.reserved_at, hour)) / 3600.0
           * x.memory_mib / nullif(d.memory_mib, 0)) AS card_hours_by_memory
FROM allocations a
JOIN allocation_devices x ON x.allocation_id = a.id AND x.role = 'app'
JOIN devices d ON d.uuid = x.device_uuid
CROSS JOIN LATERAL generate_series(date_trunc('hour', a.reserved_at),
                                   coalesce(a.ended_at, now()), interval '1 hour') AS hour
GROUP BY a.namespace, date_trunc('day', hour, 'UTC')
"""

# Without DISTINCT ON, so that a reader's bounds on time reach the table.
PENDING = """
CREATE OR REPLACE VIEW v_pending_reasons AS
SELECT d.pod_uid, d.namespace, d.pod_name, d.message, d.reason_counts,
       d.candidates, d.repeat_count, d.at AS since, d.last_at, d.summary
FROM decisions d
WHERE d.outcome <> 'placed'
  AND NOT EXISTS (SELECT FROM decisions later
                  WHERE later.pod_uid = d.pod_uid AND later.at >= d.at
                    AND (later.at, later.id) > (d.at, d.id))
  AND NOT EXISTS (SELECT FROM allocations a
                  WHERE a.pod_uid = d.pod_uid AND a.ended_at IS NULL)
"""
PENDING_BEFORE = """
CREATE OR REPLACE VIEW v_pending_reasons AS
SELECT DISTINCT ON (d.pod_uid) d.pod_uid, d.namespace, d.pod_name, d.message, d.reason_counts,
       d.candidates, d.repeat_count, d.at AS since, d.last_at, d.summary
FROM decisions d
WHERE d.outcome <> 'placed'
  AND NOT EXISTS (SELECT FROM decisions later
                  WHERE later.pod_uid = d.pod_uid AND later.at > d.at)
  AND NOT EXISTS (SELECT FROM allocations a
                  WHERE a.pod_uid = d.pod_uid AND a.ended_at IS NULL)
ORDER BY d.pod_uid, d.at DESC
"""

SICK = """
CREATE VIEW v_sick_cards AS
SELECT node, device_uuid, reason, at AS sick_at, well_at, tstzrange(at, well_at) AS sick
  FROM (SELECT node, device_uuid, healthy, reason, at,
               lead(at) OVER (PARTITION BY device_uuid ORDER BY at, id) AS well_at
          FROM device_health_events) e
 WHERE NOT healthy
"""

# By node and period, because a card grants many thousand slices in a year.
ON_SICK = """
CREATE VIEW v_pods_on_sick_cards AS
SELECT s.node, s.device_uuid, s.reason, s.sick_at, s.well_at, s.sick, h.namespace, h.pod_name,
       h.pod_uid, h.container_name, h.state, s.sick * h.held AS together
  FROM v_sick_cards s JOIN v_allocation_history h ON h.device_uuid = s.device_uuid
   AND h.ended_at IS NOT NULL AND h.held && s.sick
   AND hami_text_span(h.node, h.node, '[]') && hami_text_span(s.node, s.node, '[]')
UNION ALL
SELECT s.node, s.device_uuid, s.reason, s.sick_at, s.well_at, s.sick, h.namespace, h.pod_name,
       h.pod_uid, h.container_name, h.state, s.sick * h.held
  FROM v_sick_cards s JOIN v_allocation_history h ON h.device_uuid = s.device_uuid
   AND h.state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')
   AND h.node = s.node AND h.held && s.sick
"""

READER = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'hami_reader') THEN
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO hami_reader;
    END IF;
END $$
"""


def upgrade() -> None:
    """Add tables, columns, functions and views."""
    op.execute('CREATE TYPE hami_text_span AS RANGE (SUBTYPE = text, COLLATION = "C")')
    op.create_table(
        "namespace_rollups",
        sa.Column("bucket_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bucket_s", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("slice_s", sa.Float(), nullable=False),
        sa.Column("card_s", sa.Float(), nullable=False),
        sa.Column("memory_mib_s", sa.Float(), nullable=False),
        sa.Column("core_s", sa.Float(), nullable=False),
        sa.Column("sample_count", sa.BigInteger(), nullable=True),
        sa.Column("core_percent_sum", sa.Float(), nullable=True),
        sa.Column("memory_used_sum_bytes", sa.Float(), nullable=True),
        sa.CheckConstraint(
            "bucket_s IN (3600, 86400)", name=op.f("ck_namespace_rollups_hour_or_day")
        ),
        sa.PrimaryKeyConstraint(
            "bucket_s", "bucket_start", "namespace", name=op.f("pk_namespace_rollups")
        ),
    )
    op.execute(GAP_FREE)
    op.execute(
        "CREATE TRIGGER gap_free BEFORE INSERT ON allocation_events"
        " FOR EACH ROW EXECUTE FUNCTION hami_refuse_gap()"
    )
    for statement in (
        HELD,
        HISTORY.format(more=", hami_held(a.reserved_at, a.ended_at) AS held"),
        AT,
        BETWEEN,
        "DROP VIEW v_namespace_gpu_hours",
        GPU_HOURS,
        PENDING,
        SICK,
        ON_SICK,
        READER,
    ):
        op.execute(statement)


def downgrade() -> None:
    """Drop tables, columns, functions and views."""
    for statement in (
        "DROP VIEW v_pods_on_sick_cards",
        "DROP VIEW v_sick_cards",
        PENDING_BEFORE,
        "DROP VIEW v_namespace_gpu_hours",
        GPU_HOURS_BEFORE,
        "DROP FUNCTION allocations_between(timestamptz, timestamptz)",
        "DROP FUNCTION allocations_at(timestamptz)",
        "DROP VIEW v_allocation_history",
        "DROP FUNCTION hami_held(timestamptz, timestamptz)",
        HISTORY.format(more=""),
        AT_BEFORE,
        "DROP TRIGGER gap_free ON allocation_events",
        "DROP FUNCTION hami_refuse_gap()",
        READER,
    ):
        op.execute(statement)
    op.drop_table("namespace_rollups")
    op.execute("DROP TYPE hami_text_span")
