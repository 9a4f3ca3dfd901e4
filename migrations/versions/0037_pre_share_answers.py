"""Add functions that several named questions, and users' own SQL, share.

Four questions computed the cards of a moment, three the waiting pods, four the pod of a name, and
two the bill, each with its own copy. The bill's seconds are now rounded in one place, so its lines
and its sum agree to the second.
"""

from __future__ import annotations

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

# Of grants, and of decisions that did not place the pod.
NAMED_POD = """
CREATE FUNCTION newest_pod_uid(namespace text, pod text, at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
SELECT pod_uid FROM (
    (SELECT pod_uid, reserved_at AS moment FROM allocations
      WHERE namespace = $1 AND pod_name = $2 AND reserved_at <= $3
      ORDER BY reserved_at DESC LIMIT 1)
    UNION ALL
    (SELECT pod_uid, d.at FROM decisions d
      WHERE namespace = $1 AND pod_name = $2 AND outcome <> 'placed'
        AND d.at <= $3 AND d.at > $3 - interval '31 days'
      ORDER BY d.at DESC LIMIT 1)) named
 ORDER BY moment DESC LIMIT 1
$$
"""

# What a pod asks for, of `decisions.request`: cards in all, and the most of one card.
ASKED = """
CREATE FUNCTION amounts_asked(request jsonb)
RETURNS TABLE (card_count bigint, memory_bytes bigint, memory_ratio float8, core_ratio float8)
LANGUAGE sql STABLE AS $$
SELECT greatest(sum(count) FILTER (WHERE role <> 'init'),
                max(count + coalesce(beside, 0)) FILTER (WHERE role = 'init'))::bigint,
       nullif(max((r->>'memory_mib')::bigint), 0) * 1048576,
       max((r->>'memory_percent')::float8) / 100,
       max(least((r->>'core_percent')::float8, 100)) / 100
  FROM (SELECT r, c.value->>'role' AS role, (r->>'count')::bigint AS count,
               sum((r->>'count')::bigint) FILTER (WHERE c.value->>'role' = 'sidecar')
                   OVER (ORDER BY c.n) AS beside
          FROM jsonb_array_elements($1->'containers') WITH ORDINALITY c (value, n),
               jsonb_array_elements(c.value->'requests') r) wants
$$
"""

# A refused pod waits until it is placed, gone or ended.
WAITING = """
CREATE FUNCTION waiting_pods_at(at timestamptz)
RETURNS TABLE (since_at timestamptz, pod_uid text, namespace text, pod_name text,
               last_at timestamptz, repeat_count integer, request jsonb, reason_code text,
               reason_counts jsonb, candidates integer, summary text, trace_id text)
LANGUAGE sql STABLE AS $$
WITH waiting AS (
    SELECT d.* FROM decisions d
     WHERE d.outcome <> 'placed' AND d.at <= $1 AND d.at > $1 - interval '31 days'
       AND (d.wait_ended_at > $1
            OR (d.wait_ended_at = '-infinity' AND d.last_at > $1 - interval '10 minutes'))
       AND NOT EXISTS (SELECT FROM decisions later
                        WHERE later.pod_uid = d.pod_uid AND later.at BETWEEN d.at AND $1
                          AND (later.at, later.id) > (d.at, d.id))
       AND NOT EXISTS (SELECT FROM allocations a
                        WHERE a.pod_uid = d.pod_uid AND a.reserved_at <= $1
                          AND (a.ended_at IS NULL OR a.ended_at > $1))
), since AS (
    SELECT f.pod_uid, min(f.at) AS since_at FROM decisions f
     WHERE f.pod_uid IN (SELECT w.pod_uid FROM waiting w) AND f.outcome <> 'placed'
       AND f.at <= $1 AND f.at > $1 - interval '31 days'
     GROUP BY f.pod_uid
)
SELECT s.since_at, w.pod_uid, w.namespace, w.pod_name, w.last_at, w.repeat_count, w.request,
       coalesce((SELECT key FROM jsonb_each_text(w.reason_counts)
                  ORDER BY value::numeric DESC, key LIMIT 1), 'unknown'),
       w.reason_counts, w.candidates, w.summary, w.trace_id
  FROM waiting w JOIN since s ON s.pod_uid = w.pod_uid
$$
"""

_HELD = """greatest(coalesce(sum(h.{column}) FILTER (WHERE h.role = 'app'), 0),
                       coalesce(max(h.{column} + (hami_beside(h.allocation_id, h.device_uuid,
                                                              h.container_name)).{column})
                                FILTER (WHERE h.role = 'init'), 0))"""
# Each card that was there, with what all grants held of it.
CARDS = f"""
CREATE FUNCTION cards_at(at timestamptz)
RETURNS TABLE (node text, card_index integer, device_uuid text, vendor text, type text,
               memory_mib bigint, held_mib bigint, core_percent bigint, held_percent bigint,
               slots bigint, held_slots bigint, pods bigint, healthy boolean, health_reason text,
               cordoned boolean, began_at timestamptz)
LANGUAGE sql STABLE AS $$
WITH held AS (
    SELECT by_pod.device_uuid, sum(by_pod.memory_mib) AS memory_mib,
           sum(by_pod.core_percent) AS core_percent, count(*) AS pods, sum(by_pod.slots) AS slots
      FROM (SELECT h.allocation_id, h.device_uuid,
                   greatest(count(*) FILTER (WHERE h.role = 'app'),
                            coalesce(max(1 + (hami_beside(h.allocation_id, h.device_uuid,
                                                          h.container_name)).slots)
                                     FILTER (WHERE h.role = 'init'), 0)) AS slots,
                   {_HELD.format(column="memory_mib")} AS memory_mib,
                   {_HELD.format(column="core_percent")} AS core_percent
              FROM allocations_at($1) h GROUP BY h.allocation_id, h.device_uuid) by_pod
     GROUP BY by_pod.device_uuid
)
SELECT p.node, d.index, p.device_uuid, p.vendor, p.type, p.memory_mib::bigint,
       coalesce(h.memory_mib, 0)::bigint, p.core_percent::bigint,
       coalesce(h.core_percent, 0)::bigint, p.slots::bigint, coalesce(h.slots, 0)::bigint,
       coalesce(h.pods, 0)::bigint, p.healthy, p.health_reason, p.cordoned, p.began_at
  FROM device_periods p JOIN devices d ON d.uuid = p.device_uuid
  LEFT JOIN held h ON h.device_uuid = p.device_uuid
 WHERE p.present AND p.began_at <= $1 AND coalesce(p.ended_at, 'infinity') > $1
$$
"""

# From sums of whole days and hours, and of what no sum is of yet from the grants themselves. Each
# row is rounded down from the running sum, so no second is lost between rows.
BILL = """
CREATE FUNCTION bill_between("from" timestamptz, until timestamptz, basis text, weight float8)
RETURNS TABLE (type text, kind text, namespace text, us numeric, card_s bigint)
LANGUAGE sql STABLE AS $$
WITH summed AS (
    SELECT coalesce(max(bucket_start) + interval '1 hour', '-infinity') AS till
      FROM showback_rollups WHERE bucket_s = 3600
), hours AS (
    SELECT least($2, now()) AS till,
           least(date_trunc('hour', $1 + interval '1 hour' - interval '1 microsecond', 'UTC'), $2)
               AS first_hour,
           least(date_trunc('hour', $2, 'UTC'), (SELECT till FROM summed)) AS last_hour
), days AS (
    SELECT *, date_trunc('day', first_hour + interval '1 day' - interval '1 microsecond', 'UTC')
               AS first_day, date_trunc('day', last_hour, 'UTC') AS last_day
      FROM hours
), parts AS (
    SELECT r.type, r.kind, r.namespace, r.memory_us, r.core_us, r.slot_us
      FROM days JOIN showback_rollups r
        ON r.bucket_s = 86400 AND r.bucket_start >= first_day AND r.bucket_start < last_day
    UNION ALL
    SELECT r.type, r.kind, r.namespace, r.memory_us, r.core_us, r.slot_us
      FROM days JOIN showback_rollups r
        ON r.bucket_s = 3600 AND r.bucket_start >= first_hour AND r.bucket_start < last_hour
           AND NOT (r.bucket_start >= first_day AND r.bucket_start < last_day)
    UNION ALL
    SELECT s.* FROM days CROSS JOIN LATERAL
           showback_between($1, CASE WHEN last_hour > first_hour THEN first_hour ELSE till END) s
    UNION ALL
    SELECT s.* FROM days CROSS JOIN LATERAL showback_between(last_hour, till) s
     WHERE last_hour > first_hour
), cut AS (
    SELECT p.type, p.kind, p.namespace,
           sum(CASE $3 WHEN 'memory' THEN memory_us WHEN 'cores' THEN core_us
                       WHEN 'slots' THEN slot_us
                       ELSE memory_us * $4::numeric + core_us * (1 - $4::numeric) END) AS us
      FROM parts p GROUP BY p.type, p.kind, p.namespace
), added AS (
    SELECT c.*, sum(c.us) OVER (PARTITION BY c.type ORDER BY c.kind, c.namespace
                                ROWS UNBOUNDED PRECEDING) AS us_sum
      FROM cut c
)
SELECT a.type, a.kind, a.namespace, a.us,
       (div(a.us_sum, 1000000) - div(a.us_sum - a.us, 1000000))::bigint
  FROM added a WHERE a.us > 0
$$
"""

SIGNATURES = (
    "newest_pod_uid(text, text, timestamptz)",
    "amounts_asked(jsonb)",
    "waiting_pods_at(timestamptz)",
    "cards_at(timestamptz)",
    "bill_between(timestamptz, timestamptz, text, float8)",
)


def upgrade() -> None:
    """Create the functions."""
    for function in (NAMED_POD, ASKED, WAITING, CARDS, BILL):
        op.execute(function)


def downgrade() -> None:
    """Drop the functions; older questions have their own copies."""
    for signature in SIGNATURES:
        op.execute(f"DROP FUNCTION {signature}")
