"""Create triggers that guard the history, partitions, views, and the read-only role."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# History is written once. A superuser can still drop the trigger; that leaves a trace in the log.
APPEND_ONLY = """
CREATE FUNCTION hami_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON allocation_events
    FOR EACH ROW EXECUTE FUNCTION hami_refuse_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON allocation_events
    FOR EACH STATEMENT EXECUTE FUNCTION hami_refuse_change();
"""

# One partition per UTC day, named <table>_YYYYMMDD. The default partition catches what no day
# covers, so that a late job never loses a row.
PARTITIONS = """
CREATE FUNCTION hami_ensure_partition(parent text, day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    child text := parent || '_' || to_char(day, 'YYYYMMDD');
    from_at timestamptz := day::timestamp AT TIME ZONE 'UTC';
BEGIN
    IF to_regclass(child) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                       child, parent, from_at, from_at + interval '1 day');
    END IF;
END $$;
CREATE TABLE decisions_default PARTITION OF decisions DEFAULT;
CREATE TABLE usage_samples_default PARTITION OF usage_samples DEFAULT;
SELECT hami_ensure_partition(parent, (now() AT TIME ZONE 'UTC')::date + ahead)
    FROM unnest(ARRAY['decisions', 'usage_samples']) AS parent, generate_series(0, 1) AS ahead;
"""

VIEWS = """
CREATE VIEW v_allocation_history AS
SELECT a.id AS allocation_id, a.namespace, a.pod_name, a.pod_uid, a.attempt, a.node,
       d.container_name, d.role, d.device_uuid, d.memory_mib, d.core_percent,
       a.state, a.reason, a.reserved_at, a.bound_at, a.allocated_at, a.ended_at
FROM allocations a JOIN allocation_devices d ON d.allocation_id = a.id;

CREATE FUNCTION allocations_at(at timestamptz) RETURNS SETOF v_allocation_history
LANGUAGE sql STABLE AS $$
    SELECT * FROM v_allocation_history h
    WHERE h.reserved_at <= at AND (h.ended_at IS NULL OR h.ended_at > at)
$$;

CREATE VIEW v_device_occupancy AS
SELECT d.node, d.index, d.uuid, d.type, d.healthy, d.present,
       d.used_slots, d.slots, d.used_memory_mib, d.memory_mib, d.used_core_percent, d.core_percent,
       coalesce(p.pods, '') AS pods
FROM devices d LEFT JOIN LATERAL (
    SELECT string_agg(DISTINCT a.namespace || '/' || a.pod_name, ', ') AS pods
    FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
    WHERE x.device_uuid = d.uuid AND a.ended_at IS NULL
) p ON true;

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
GROUP BY a.namespace, date_trunc('day', hour, 'UTC');

CREATE VIEW v_pending_reasons AS
SELECT DISTINCT ON (d.pod_uid) d.pod_uid, d.namespace, d.pod_name, d.message, d.reason_counts,
       d.candidates, d.repeat_count, d.at AS since, d.last_at
FROM decisions d
WHERE d.outcome <> 'placed'
  AND NOT EXISTS (SELECT FROM decisions later
                  WHERE later.pod_uid = d.pod_uid AND later.at > d.at)
  AND NOT EXISTS (SELECT FROM allocations a
                  WHERE a.pod_uid = d.pod_uid AND a.ended_at IS NULL)
ORDER BY d.pod_uid, d.at DESC;
"""

# Roles belong to the whole server, so another database may have made it already; and a managed
# server may not let us, then the administrator makes it.
READER = """
DO $$ BEGIN
    CREATE ROLE hami_reader NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END $$;
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'hami_reader') THEN
        GRANT USAGE ON SCHEMA public TO hami_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO hami_reader;
        ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO hami_reader;
    END IF;
END $$;
"""


def upgrade() -> None:
    """Create all of these."""
    for script in (APPEND_ONLY, PARTITIONS, VIEWS, READER):
        for statement in _statements(script):
            op.execute(statement)


def downgrade() -> None:
    """Drop all but the role, which other databases of the server may use."""
    for statement in (
        "DROP VIEW v_pending_reasons",
        "DROP VIEW v_namespace_gpu_hours",
        "DROP VIEW v_device_occupancy",
        "DROP FUNCTION allocations_at(timestamptz)",
        "DROP VIEW v_allocation_history",
        "DROP FUNCTION hami_ensure_partition(text, date)",
        "DROP TRIGGER append_only ON allocation_events",
        "DROP TRIGGER append_only_truncate ON allocation_events",
        "DROP FUNCTION hami_refuse_change()",
        "DROP TABLE decisions_default",
        "DROP TABLE usage_samples_default",
    ):
        op.execute(statement)


def _statements(script: str) -> list[str]:
    """Split the script into statements for asyncpg, at `;` at a line's end outside `$$`."""
    statements, current, quoted = [], "", False
    for line in script.strip().splitlines():
        current += line + "\n"
        quoted ^= line.count("$$") % 2 == 1
        if line.rstrip().endswith(";") and not quoted:
            statements.append(current)
            current = ""
    return statements
