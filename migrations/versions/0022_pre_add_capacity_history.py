"""Add the history of capacity: periods of cards and quotas, written by triggers.

A card's row changes with every grant, so its trigger is on the columns that grants never write: an
UPDATE that does not name them pays nothing. Runs while the previous version writes: locks `quotas`,
`nodes` and `devices` for a moment, in the writers' order.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

UNHEARD = "interval '75 seconds'"
"""Time without a report after which a node's cards are unknown.

An agent reports every 10 s, and one report of three is written; after HAMI_SCHEDULER_AGENT_SILENT_S
a node gets no pods.
"""

_WHAT = (
    "node, vendor, type, slots, memory_mib, core_percent, healthy, health_reason, cordoned, present"
)
_NEW = ", ".join(f"NEW.{name.strip()}" for name in _WHAT.split(","))
_OLD = _NEW.replace("NEW.", "OLD.")

# The row of the card is locked, so its periods are written one after the other. A transaction that
# began before the last change was committed ends the period of that change at the period's start.
KEEP_CARD = f"""
CREATE FUNCTION hami_keep_card() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    last device_periods;
    moment timestamptz := now();
BEGIN
    SELECT * INTO last FROM device_periods WHERE ended_at IS NULL
       AND device_uuid = CASE WHEN TG_OP = 'DELETE' THEN OLD.uuid ELSE NEW.uuid END;
    moment := greatest(moment, last.began_at);
    IF TG_OP <> 'DELETE' AND last.began_at = moment THEN
        UPDATE device_periods SET ({_WHAT}) = ROW({_NEW}) WHERE id = last.id;
        RETURN NULL;
    END IF;
    UPDATE device_periods SET ended_at = moment WHERE id = last.id;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO device_periods (device_uuid, {_WHAT}, began_at)
        VALUES (NEW.uuid, {_NEW}, moment);
    END IF;
    RETURN NULL;
END $$
"""
CARD_TRIGGERS = (
    "CREATE TRIGGER card_came AFTER INSERT OR DELETE ON devices"
    " FOR EACH ROW EXECUTE FUNCTION hami_keep_card()",
    f"CREATE TRIGGER card_changed AFTER UPDATE OF {_WHAT} ON devices"
    f" FOR EACH ROW WHEN (({_NEW}) IS DISTINCT FROM ({_OLD})) EXECUTE FUNCTION hami_keep_card()",
)
FIRST_CARDS = f"""
INSERT INTO device_periods (device_uuid, {_WHAT}, began_at, since_known)
SELECT uuid, {_WHAT}, now(), false FROM devices
"""

KEEP_GAP = """
CREATE FUNCTION hami_keep_gap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO node_gaps (node, began_at, ended_at)
    VALUES (NEW.name, OLD.inventory_at, NEW.inventory_at) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$
"""
GAP_TRIGGER = f"""
CREATE TRIGGER heard_again AFTER UPDATE OF inventory_at ON nodes FOR EACH ROW
WHEN (OLD.source = 'agent' AND NEW.source = 'agent'
      AND NEW.inventory_at > OLD.inventory_at + {UNHEARD})
EXECUTE FUNCTION hami_keep_gap()
"""

KEEP_QUOTA = """
CREATE FUNCTION hami_keep_quota() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    last quota_periods;
    moment timestamptz := now();
BEGIN
    SELECT * INTO last FROM quota_periods WHERE ended_at IS NULL
       AND (namespace, resource) = (CASE WHEN TG_OP = 'DELETE' THEN OLD.namespace
                                         ELSE NEW.namespace END,
                                    CASE WHEN TG_OP = 'DELETE' THEN OLD.resource
                                         ELSE NEW.resource END);
    moment := greatest(moment, last.began_at);
    UPDATE quota_periods SET ended_at = moment WHERE id = last.id;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO quota_periods (namespace, resource, limit_amount, began_at)
        SELECT NEW.namespace, NEW.resource, NEW.limit_amount, moment
         WHERE NEW.limit_amount IS NOT NULL;
    END IF;
    RETURN NULL;
END $$
"""
QUOTA_TRIGGERS = (
    "CREATE TRIGGER quota_came AFTER INSERT OR DELETE ON quotas"
    " FOR EACH ROW EXECUTE FUNCTION hami_keep_quota()",
    "CREATE TRIGGER quota_changed AFTER UPDATE OF limit_amount ON quotas FOR EACH ROW"
    " WHEN (NEW.limit_amount IS DISTINCT FROM OLD.limit_amount) EXECUTE FUNCTION hami_keep_quota()",
)
FIRST_QUOTAS = """
INSERT INTO quota_periods (namespace, resource, limit_amount, began_at, since_known)
SELECT namespace, resource, limit_amount, now(), false FROM quotas WHERE limit_amount IS NOT NULL
"""

# Each card's time is cut at every change of the card, of its node's reports and of its grants, so
# that in each piece all of them are constant. One period of a card is open at a time, so the sum of
# the ids that began and did not end is the id of the open period.
CAPACITY = f"""
CREATE FUNCTION capacity_between("from" timestamptz, until timestamptz)
RETURNS TABLE (node text, device_uuid text, type text, held_s float8, idle_s float8,
               cordoned_s float8, unhealthy_s float8, unknown_s float8, absent_s float8)
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
    SELECT id, reserved_at, ended_at FROM span CROSS JOIN LATERAL (
        SELECT id, reserved_at, ended_at FROM allocations
         WHERE ended_at IS NOT NULL AND hami_held(reserved_at, ended_at) && tstzrange(since, till)
        UNION ALL
        SELECT id, reserved_at, NULL FROM allocations
         WHERE ended_at IS NULL AND reserved_at < till) a
), grants AS (
    SELECT x.device_uuid, greatest(h.reserved_at, since) AS b,
           least(coalesce(h.ended_at, 'infinity'), till) AS e,
           greatest(coalesce(sum(x.memory_mib) FILTER (WHERE x.role = 'app'), 0),
                    coalesce(max(x.memory_mib) FILTER (WHERE x.role = 'init'), 0)) AS memory_mib,
           greatest(coalesce(sum(x.slots) FILTER (WHERE x.role = 'app'), 0),
                    coalesce(max(x.slots) FILTER (WHERE x.role = 'init'), 0)) AS slots
      FROM span, held h JOIN allocation_devices x ON x.allocation_id = h.id
     GROUP BY h.id, x.device_uuid, h.reserved_at, h.ended_at, since, till
), changes AS (
    SELECT device_uuid, b AS at, id AS period, blind, 0 AS gap, 0 AS memory_mib, 0 AS slots
      FROM periods WHERE b < e
    UNION ALL SELECT device_uuid, e, -id, -blind, 0, 0, 0 FROM periods WHERE b < e
    UNION ALL SELECT device_uuid, b, 0, 0, 1, 0, 0 FROM unheard WHERE b < e
    UNION ALL SELECT device_uuid, e, 0, 0, -1, 0, 0 FROM unheard WHERE b < e
    UNION ALL SELECT device_uuid, b, 0, 0, 0, memory_mib, slots FROM grants WHERE b < e
    UNION ALL SELECT device_uuid, e, 0, 0, 0, -memory_mib, -slots FROM grants WHERE b < e
), moments AS (
    SELECT device_uuid, at, sum(period) AS period, sum(blind) AS blind, sum(gap) AS gap,
           sum(memory_mib) AS memory_mib, sum(slots) AS slots
      FROM changes GROUP BY device_uuid, at
), pieces AS (
    SELECT device_uuid, (sum(period) OVER line)::bigint AS period,
           sum(blind) OVER line > 0 AS blind, sum(gap) OVER line > 0 AS gap,
           sum(memory_mib) OVER line AS memory_mib, sum(slots) OVER line AS slots,
           extract(epoch FROM lead(at) OVER line - at)::float8 AS seconds
      FROM moments WINDOW line AS (PARTITION BY device_uuid ORDER BY at)
), known AS (
    SELECT p.node, p.device_uuid, p.type, seconds, blind, NOT blind AND NOT p.present AS absent,
           gap, p.healthy, p.cordoned,
           CASE WHEN blind OR NOT p.present THEN 0
                ELSE least(1, CASE WHEN p.memory_mib > 0 THEN s.memory_mib / p.memory_mib::float8
                                   WHEN p.slots > 0 THEN s.slots / p.slots::float8
                                   ELSE 0 END) END AS share
      FROM pieces s JOIN device_periods p ON p.id = s.period
     WHERE seconds > 0
)
SELECT node, device_uuid, type, sum(seconds * share),
       sum(CASE WHEN absent OR blind OR gap OR NOT healthy OR cordoned THEN 0
                ELSE seconds * (1 - share) END),
       sum(CASE WHEN absent OR blind OR gap OR NOT healthy OR NOT cordoned THEN 0
                ELSE seconds * (1 - share) END),
       sum(CASE WHEN absent OR blind OR gap OR healthy THEN 0 ELSE seconds * (1 - share) END),
       sum(CASE WHEN NOT absent AND (blind OR gap) THEN seconds * (1 - share) ELSE 0 END),
       sum(CASE WHEN absent THEN seconds ELSE 0 END)
  FROM known GROUP BY node, device_uuid, type
$$
"""

# Summed-up hours, and the hours since then from the periods, by day.
HOURS = """
CREATE VIEW v_capacity_hours AS
WITH summed AS (
    SELECT coalesce((SELECT max(bucket_start) + interval '1 hour' FROM capacity_rollups
                      WHERE bucket_s = 3600),
                    (SELECT date_trunc('day', min(began_at), 'UTC') FROM device_periods)) AS until
), parts AS (
    SELECT date_trunc('day', bucket_start, 'UTC') AS day, node, type, held_s, idle_s, cordoned_s,
           unhealthy_s, unknown_s, absent_s
      FROM capacity_rollups WHERE bucket_s = 3600
    UNION ALL
    SELECT day, c.node, c.type, held_s, idle_s, cordoned_s, unhealthy_s, unknown_s, absent_s
      FROM summed
      CROSS JOIN LATERAL generate_series(date_trunc('day', summed.until, 'UTC'), now(),
                                         interval '24 hours') AS day
      CROSS JOIN LATERAL capacity_between(greatest(day, summed.until), day + interval '24 hours') c
)
SELECT day, node, type, sum(held_s + idle_s + cordoned_s + unhealthy_s + unknown_s) / 3600
           AS card_hours,
       sum(held_s) / 3600 AS held_hours, sum(idle_s) / 3600 AS idle_hours,
       sum(cordoned_s) / 3600 AS cordoned_hours, sum(unhealthy_s) / 3600 AS unhealthy_hours,
       sum(unknown_s) / 3600 AS unknown_hours, sum(absent_s) / 3600 AS absent_hours
  FROM parts GROUP BY day, node, type
"""

# Share of the hours with a known state of the cards; NULL if there are none.
IDLE = """
CREATE VIEW v_idle_share AS
SELECT day, node, sum(card_hours) AS card_hours, sum(held_hours) AS held_hours,
       sum(idle_hours) AS idle_hours, sum(unknown_hours) AS unknown_hours,
       sum(idle_hours) / nullif(sum(card_hours - unknown_hours), 0) AS idle_share,
       sum(unknown_hours) / nullif(sum(card_hours), 0) AS unknown_share
  FROM v_capacity_hours GROUP BY day, node
"""

CARDS = """
CREATE VIEW v_card_history AS
SELECT began_at AS at, ended_at AS until, node, device_uuid, type, memory_mib, core_percent, slots,
       present, healthy, cordoned, health_reason,
       concat_ws(', ',
           CASE WHEN before IS NULL THEN CASE WHEN since_known THEN 'added'
                                              ELSE 'first recorded' END END,
           CASE WHEN present AND NOT (before).present THEN 'back' END,
           CASE WHEN NOT present AND (before).present THEN 'absent' END,
           CASE WHEN node <> (before).node THEN 'moved' END,
           CASE WHEN (memory_mib, core_percent, slots)
                     <> ((before).memory_mib, (before).core_percent, (before).slots)
                THEN 'resized' END,
           CASE WHEN type <> (before).type OR vendor <> (before).vendor THEN 'renamed' END,
           CASE WHEN present AND healthy AND (before).present AND NOT (before).healthy
                THEN 'recovered' END,
           CASE WHEN present AND NOT healthy AND ((before).healthy OR NOT (before).present)
                THEN 'sick' END,
           CASE WHEN cordoned AND NOT (before).cordoned THEN 'cordoned' END,
           CASE WHEN NOT cordoned AND (before).cordoned THEN 'uncordoned' END) AS change,
       CASE WHEN before IS NULL AND NOT since_known THEN 0
            ELSE CASE WHEN present THEN memory_mib ELSE 0 END
                 - CASE WHEN (before).present THEN (before).memory_mib ELSE 0 END
            END AS memory_mib_added,
       CASE WHEN before IS NULL AND NOT since_known THEN 0
            ELSE present::int - coalesce((before).present, false)::int END AS cards_added
  FROM (SELECT p.*, lag(p) OVER (PARTITION BY device_uuid ORDER BY began_at, id) AS before
          FROM device_periods p) h
"""


def upgrade() -> None:
    """Add the tables, and begin periods for existing cards and quotas."""
    _periods()
    _sums()
    for statement in (KEEP_CARD, KEEP_GAP, KEEP_QUOTA, CAPACITY, HOURS, IDLE, CARDS):
        op.execute(statement)
    for statement in (*QUOTA_TRIGGERS, GAP_TRIGGER, *CARD_TRIGGERS, FIRST_CARDS, FIRST_QUOTAS):
        op.execute(statement)


def _periods() -> None:
    stamp = sa.DateTime(timezone=True)
    op.create_table(
        "device_periods",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("device_uuid", "node", "vendor")),
        sa.Column("type", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.Integer(), nullable=False)
            for name in ("slots", "memory_mib", "core_percent")
        ),
        sa.Column("healthy", sa.Boolean(), nullable=False),
        sa.Column("health_reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("began_at", stamp, nullable=False),
        sa.Column("ended_at", stamp, nullable=True),
        sa.Column("since_known", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.CheckConstraint("ended_at >= began_at", name=op.f("ck_device_periods_in_order")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_periods")),
    )
    op.create_table(
        "node_gaps",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("began_at", stamp, nullable=False),
        sa.Column("ended_at", stamp, nullable=False),
        sa.CheckConstraint("ended_at > began_at", name=op.f("ck_node_gaps_in_order")),
        sa.PrimaryKeyConstraint("node", "began_at", name=op.f("pk_node_gaps")),
    )
    op.create_table(
        "quota_periods",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("limit_amount", sa.BigInteger(), nullable=False),
        sa.Column("began_at", stamp, nullable=False),
        sa.Column("ended_at", stamp, nullable=True),
        sa.Column("since_known", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.CheckConstraint("ended_at >= began_at", name=op.f("ck_quota_periods_in_order")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quota_periods")),
    )
    live, ended = sa.text("ended_at IS NULL"), sa.text("ended_at IS NOT NULL")
    for table, columns in (
        ("device_periods", ["device_uuid"]),
        ("quota_periods", ["namespace", "resource"]),
    ):
        op.create_index(f"uq_{table}_open", table, columns, unique=True, postgresql_where=live)
        op.create_index(f"ix_{table}_ended_at", table, ["ended_at"], postgresql_where=ended)
    op.create_index(
        op.f("ix_device_periods_device_uuid_began_at"),
        "device_periods",
        ["device_uuid", "began_at"],
    )
    op.create_index(op.f("ix_node_gaps_ended_at"), "node_gaps", ["ended_at"])


def _sums() -> None:
    op.create_table(
        "capacity_rollups",
        sa.Column("bucket_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bucket_s", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        *(
            sa.Column(f"{name}_s", sa.Float(), nullable=False)
            for name in ("held", "idle", "cordoned", "unhealthy", "unknown", "absent")
        ),
        sa.CheckConstraint(
            "bucket_s IN (3600, 86400)", name=op.f("ck_capacity_rollups_hour_or_day")
        ),
        sa.PrimaryKeyConstraint(
            "bucket_s", "bucket_start", "node", "type", name=op.f("pk_capacity_rollups")
        ),
    )


def downgrade() -> None:
    """Drop the tables; the history is lost."""
    for view in ("v_card_history", "v_idle_share", "v_capacity_hours"):
        op.execute(f"DROP VIEW {view}")
    op.execute("DROP FUNCTION capacity_between(timestamptz, timestamptz)")
    for name, table in (
        ("quota_changed", "quotas"),
        ("quota_came", "quotas"),
        ("heard_again", "nodes"),
        ("card_changed", "devices"),
        ("card_came", "devices"),
    ):
        op.execute(f"DROP TRIGGER {name} ON {table}")
    for function in ("hami_keep_card", "hami_keep_gap", "hami_keep_quota"):
        op.execute(f"DROP FUNCTION {function}()")
    for table in ("capacity_rollups", "quota_periods", "node_gaps", "device_periods"):
        op.drop_table(table)
