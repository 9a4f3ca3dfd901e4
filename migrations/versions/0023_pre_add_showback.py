"""Add card time per namespace, in card-microseconds, and time that no pod held.

A new table and a function, which no older code uses; no table is filled or locked.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

UNHEARD = "interval '75 seconds'"
"""Time without a report, the same as in 0022."""

# As in `capacity_between` of 0022 each card's time is cut at every change. In each piece a grant's
# share of a card is its size divided by the larger of the card and the sum of its grants, so that
# an oversubscribed card is one card. A grant of all cores has the whole card and excludes others.
# The shares of a piece are differences of running sums that are rounded down, in whole
# microseconds, so they add up to the piece exactly. A free amount is stranded while the card's
# cores, slots (or memory) are used up, because no pod can get it.
BETWEEN = f"""
CREATE FUNCTION showback_between("from" timestamptz, until timestamptz)
RETURNS TABLE (type text, kind text, namespace text, memory_us bigint, core_us bigint,
               slot_us bigint)
LANGUAGE sql STABLE AS $$
WITH span AS MATERIALIZED (
    SELECT "from" AS since, least(until, now()) AS till
), periods AS MATERIALIZED (
    SELECT p.id, p.device_uuid, p.node, 0 AS blind, greatest(p.began_at, since) AS b,
           least(coalesce(p.ended_at, 'infinity'), till) AS e
      FROM device_periods p, span
     WHERE p.began_at < till AND coalesce(p.ended_at, 'infinity') > since
    UNION ALL
    SELECT p.id, p.device_uuid, p.node, 1, greatest(n.first_seen_at, since),
           least(p.began_at, till)
      FROM span, device_periods p JOIN nodes n ON n.name = p.node
     WHERE NOT p.since_known AND p.began_at > since AND n.first_seen_at < least(p.began_at, till)
), gaps AS (
    SELECT g.node, g.began_at AS b, g.ended_at AS e FROM node_gaps g, span
     WHERE g.began_at < till AND g.ended_at > since
    UNION ALL
    SELECT n.name, n.inventory_at, least(coalesce(n.gone_at, 'infinity'), now())
      FROM nodes n, span
     WHERE n.source = 'agent' AND n.inventory_at < till
       AND n.inventory_at + {UNHEARD} < least(coalesce(n.gone_at, 'infinity'), now())
), unheard AS (
    SELECT p.device_uuid, greatest(p.b, g.b) AS b, least(p.e, g.e) AS e
      FROM periods p JOIN gaps g ON g.node = p.node AND g.b < p.e AND g.e > p.b
), held AS (
    SELECT id, namespace, reserved_at, ended_at FROM span CROSS JOIN LATERAL (
        SELECT id, namespace, reserved_at, ended_at FROM allocations
         WHERE ended_at IS NOT NULL AND hami_held(reserved_at, ended_at) && tstzrange(since, till)
        UNION ALL
        SELECT id, namespace, reserved_at, NULL FROM allocations
         WHERE ended_at IS NULL AND reserved_at < till) a
), grants AS MATERIALIZED (
    SELECT h.id, h.namespace, x.device_uuid, greatest(h.reserved_at, since) AS b,
           least(coalesce(h.ended_at, 'infinity'), till) AS e,
           greatest(coalesce(sum(x.memory_mib) FILTER (WHERE x.role = 'app'), 0),
                    coalesce(max(x.memory_mib) FILTER (WHERE x.role = 'init'), 0)) AS memory_mib,
           greatest(coalesce(sum(x.core_percent) FILTER (WHERE x.role = 'app'), 0),
                    coalesce(max(x.core_percent) FILTER (WHERE x.role = 'init'), 0))
               AS core_percent,
           greatest(coalesce(sum(x.slots) FILTER (WHERE x.role = 'app'), 0),
                    coalesce(max(x.slots) FILTER (WHERE x.role = 'init'), 0)) AS slots
      FROM span, held h JOIN allocation_devices x ON x.allocation_id = h.id
     GROUP BY h.id, h.namespace, x.device_uuid, h.reserved_at, h.ended_at, since, till
), changes AS (
    SELECT device_uuid, b AS at, id AS period, blind, 0 AS gap, 0 AS memory_mib, 0 AS core_percent,
           0 AS slots
      FROM periods WHERE b < e
    UNION ALL SELECT device_uuid, e, -id, -blind, 0, 0, 0, 0 FROM periods WHERE b < e
    UNION ALL SELECT device_uuid, b, 0, 0, 1, 0, 0, 0 FROM unheard WHERE b < e
    UNION ALL SELECT device_uuid, e, 0, 0, -1, 0, 0, 0 FROM unheard WHERE b < e
    UNION ALL
    SELECT device_uuid, b, 0, 0, 0, memory_mib, core_percent, slots FROM grants WHERE b < e
    UNION ALL
    SELECT device_uuid, e, 0, 0, 0, -memory_mib, -core_percent, -slots FROM grants WHERE b < e
), moments AS (
    SELECT device_uuid, at, sum(period) AS period, sum(blind) AS blind, sum(gap) AS gap,
           sum(memory_mib) AS memory_mib, sum(core_percent) AS core_percent, sum(slots) AS slots
      FROM changes GROUP BY device_uuid, at
), pieces AS (
    SELECT device_uuid, at AS b, lead(at) OVER line AS e, (sum(period) OVER line)::bigint AS period,
           sum(blind) OVER line > 0 AS blind, sum(gap) OVER line > 0 AS gap,
           sum(memory_mib) OVER line AS memory_mib, sum(core_percent) OVER line AS core_percent,
           sum(slots) OVER line AS slots
      FROM moments WINDOW line AS (PARTITION BY device_uuid ORDER BY at)
), known AS MATERIALIZED (
    SELECT s.device_uuid, s.b, s.e, s.blind, p.type,
           extract(epoch FROM s.e - s.b) * 1000000 AS us,
           coalesce(nullif(p.memory_mib, 0), p.slots) AS memory_all, p.memory_mib > 0 AS by_memory,
           coalesce(nullif(p.core_percent, 0), p.slots) AS core_all, p.core_percent > 0 AS by_core,
           p.slots AS slot_all,
           CASE WHEN s.blind OR s.gap THEN 'unknown' WHEN NOT p.healthy THEN 'unhealthy'
                WHEN p.cordoned THEN 'cordoned' END AS rest,
           p.memory_mib > 0 AND s.memory_mib >= p.memory_mib AS no_memory,
           p.core_percent > 0 AND s.core_percent >= p.core_percent AS no_core,
           p.slots > 0 AND s.slots >= p.slots AS no_slot
      FROM pieces s JOIN device_periods p ON p.id = s.period
     WHERE s.e > s.b AND (s.blind OR p.present)
), sized AS (
    SELECT k.*, g.id, g.namespace,
           CASE WHEN by_core AND g.core_percent >= core_all
                THEN greatest(memory_all, CASE WHEN by_memory THEN g.memory_mib ELSE g.slots END)
                WHEN by_memory THEN g.memory_mib ELSE g.slots END AS memory,
           CASE WHEN by_core THEN g.core_percent ELSE g.slots END AS core,
           CASE WHEN by_core AND g.core_percent >= core_all THEN greatest(slot_all, g.slots)
                ELSE g.slots END AS slot
      FROM known k JOIN grants g ON g.device_uuid = k.device_uuid AND g.b <= k.b AND g.e >= k.e
     WHERE NOT k.blind
), added AS (
    SELECT s.*, sum(memory) OVER running AS memory_sum, sum(core) OVER running AS core_sum,
           sum(slot) OVER running AS slot_sum,
           nullif(greatest(memory_all, sum(memory) OVER piece), 0) AS memory_of,
           nullif(greatest(core_all, sum(core) OVER piece), 0) AS core_of,
           nullif(greatest(slot_all, sum(slot) OVER piece), 0) AS slot_of
      FROM sized s
    WINDOW piece AS (PARTITION BY device_uuid, b),
           running AS (PARTITION BY device_uuid, b ORDER BY id ROWS UNBOUNDED PRECEDING)
), shares AS MATERIALIZED (
    SELECT device_uuid, b, type, namespace,
           coalesce(div(us * memory_sum, memory_of) - div(us * (memory_sum - memory), memory_of), 0)
               AS memory_us,
           coalesce(div(us * core_sum, core_of) - div(us * (core_sum - core), core_of), 0)
               AS core_us,
           coalesce(div(us * slot_sum, slot_of) - div(us * (slot_sum - slot), slot_of), 0)
               AS slot_us
      FROM added
), taken AS (
    SELECT device_uuid, b, sum(memory_us) AS memory_us, sum(core_us) AS core_us,
           sum(slot_us) AS slot_us
      FROM shares GROUP BY device_uuid, b
)
SELECT type, 'held', namespace, sum(memory_us)::bigint, sum(core_us)::bigint, sum(slot_us)::bigint
  FROM shares GROUP BY type, namespace
UNION ALL
SELECT k.type, free.kind, '', sum(free.memory_us)::bigint, sum(free.core_us)::bigint,
       sum(free.slot_us)::bigint
  FROM known k LEFT JOIN taken t ON t.device_uuid = k.device_uuid AND t.b = k.b
  CROSS JOIN LATERAL (VALUES
       (coalesce(rest, CASE WHEN no_core OR no_slot THEN 'stranded' ELSE 'idle' END),
        us - coalesce(t.memory_us, 0), 0, 0),
       (coalesce(rest, CASE WHEN no_memory OR no_slot THEN 'stranded' ELSE 'idle' END),
        0, us - coalesce(t.core_us, 0), 0),
       (coalesce(rest, CASE WHEN no_memory OR no_core THEN 'stranded' ELSE 'idle' END),
        0, 0, us - coalesce(t.slot_us, 0))) AS free (kind, memory_us, core_us, slot_us)
 GROUP BY k.type, free.kind
$$
"""


def upgrade() -> None:
    """Add the table and the functions."""
    op.create_table(
        "showback_rollups",
        sa.Column("bucket_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bucket_s", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("type", "kind", "namespace")),
        *(
            sa.Column(f"{name}_us", sa.BigInteger(), nullable=False)
            for name in ("memory", "core", "slot")
        ),
        sa.CheckConstraint(
            "bucket_s IN (3600, 86400)", name=op.f("ck_showback_rollups_hour_or_day")
        ),
        sa.CheckConstraint(
            "kind IN ('held', 'idle', 'stranded', 'cordoned', 'unhealthy', 'unknown')",
            name=op.f("ck_showback_rollups_kind_known"),
        ),
        sa.CheckConstraint(
            "memory_us >= 0 AND core_us >= 0 AND slot_us >= 0",
            name=op.f("ck_showback_rollups_not_negative"),
        ),
        sa.PrimaryKeyConstraint(
            "bucket_s",
            "bucket_start",
            "type",
            "kind",
            "namespace",
            name=op.f("pk_showback_rollups"),
        ),
    )
    op.execute(BETWEEN)


def downgrade() -> None:
    """Drop them; the sums are lost."""
    op.execute("DROP FUNCTION showback_between(timestamptz, timestamptz)")
    op.drop_table("showback_rollups")
