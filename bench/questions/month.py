"""A month of a made-up cluster, written by the server itself: nothing travels.

100 nodes with 8 cards of 80 GiB; each card has two lanes in which pods follow on one another, so
no card is over-committed. A million grants with their slices and events, ten million samples of
the last days, their sums for the whole month, and refusals of one pod in ten. Everything follows
from the number of the pod, so two runs have the same month.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

import asyncpg
from hamicommon.ledger.partitions import make_days

from bench.sql.bulk import without_indexes
from bench.sql.made_up import CARD_MIB, CARDS_PER_NODE, NODES, SLOTS, day_span

DAYS = 30
LANES = NODES * CARDS_PER_NODE * 2
TABLES = (
    *("allocations", "allocation_devices", "allocation_events", "decisions"),
    *("usage_samples", "usage_rollups"),
)

# Half a share of randomness that stays the same: a number from 0 to 1 by the pod's own number.
_CHANCE = "(('x' || left(md5({what}), 8))::bit(32)::bigint / 4294967296.0)"
_CARD = "'GPU-' || lpad(to_hex({n}), 8, '0') || '-0000-4000-8000-' || lpad(to_hex({n}), 12, '0')"

_CLUSTER = (
    "INSERT INTO nodes (name, inventory_at, first_seen_at) SELECT 'node-' || lpad(n::text, 3, '0'),"
    f" $1::timestamptz, $1::timestamptz - interval '{DAYS} days'"
    f" FROM generate_series(0, {NODES - 1}) n",
    "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
    " ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy)"
    f" SELECT {_CARD.format(n='n')}, 'node-' || lpad((n / {CARDS_PER_NODE})::text, 3, '0'),"
    f" 'NVIDIA', n % {CARDS_PER_NODE}, CASE WHEN n % 4 = 0 THEN 'NVIDIA L40S' ELSE 'NVIDIA A100'"
    f" END, {SLOTS}, {CARD_MIB}, 100, {SLOTS}, {CARD_MIB}, 100, $1::timestamptz IS NOT NULL"
    f" FROM generate_series(0, {NODES * CARDS_PER_NODE - 1}) n",
)
# Of each pod: what all its rows are made from.
_PODS = f"""
CREATE TEMPORARY TABLE pods AS
SELECT n, md5('uid' || n) AS pod_uid, md5('id' || n)::uuid AS id,
       'team-' || lpad((1 + floor(20 * {_CHANCE.format(what="'team' || n % 1999")} ^ 2))::text,
                       2, '0') AS namespace,
       'job-' || lpad(n::text, 7, '0') AS pod_name,
       'node-' || lpad((lane / 2 / {CARDS_PER_NODE})::text, 3, '0') AS node,
       {_CARD.format(n="(lane / 2)")} AS device_uuid,
       (1 + n % 8) * 1024 AS memory_mib, 10 + 10 * (n % 3) AS core_percent,
       reserved_at, nullif(least(reserved_at + stays, $1::timestamptz), $1::timestamptz) AS ended_at
  FROM (SELECT n, (n % {LANES})::int AS lane,
               $1::timestamptz - interval '{DAYS} days' + period * (n / {LANES} + 0.5)
                   + period * 0.1 * {_CHANCE.format(what="'at' || n")} AS reserved_at,
               period * (0.05 + 0.8 * {_CHANCE.format(what="'stay' || n")}) AS stays
          FROM generate_series(0::bigint, $2::bigint - 1) n,
               (SELECT interval '{DAYS} days' / ceil($2::float8 / {LANES}) AS period) p) x
"""
_GRANTS = (
    "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, token,"
    " reserved_at, binding_at, bound_at, allocated_at, ended_at)"
    " SELECT id, pod_uid, namespace, pod_name, 1, node,"
    " CASE WHEN ended_at IS NULL THEN 'allocated' ELSE 'released' END, n + 1, reserved_at,"
    " reserved_at + interval '0.3 s', reserved_at + interval '0.4 s',"
    " reserved_at + interval '1.5 s', ended_at FROM pods",
    "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name,"
    " role, device_uuid, vendor, memory_mib, core_percent)"
    " SELECT id, 0, 0, 'main', 'app', device_uuid, 'NVIDIA', memory_mib, core_percent FROM pods",
    "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, actor,"
    " at) SELECT pod_uid, step.number, id, step.before, step.state, 'scheduler',"
    " CASE step.number WHEN 1 THEN reserved_at WHEN 2 THEN reserved_at + interval '1.5 s'"
    " ELSE ended_at END FROM pods, (VALUES (1, NULL, 'reserved'), (2, 'reserved', 'allocated'),"
    " (3, 'allocated', 'released')) AS step (number, before, state)"
    " WHERE step.number < 3 OR ended_at IS NOT NULL ORDER BY reserved_at",
    "SELECT setval('allocation_tokens', $1::bigint + 1)",
)
_REQUEST = """
jsonb_build_object('containers', jsonb_build_array(jsonb_build_object('name', 'main', 'role', 'app',
    'requests', jsonb_build_array(jsonb_build_object('vendor', 'NVIDIA', 'count', 1,
        'memory_mib', memory_mib, 'memory_percent', NULL, 'core_percent', core_percent)))))
"""
# One in ten was refused first; the newest two hundred of those still wait.
_DECISIONS = f"""
INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, node, allocation_id,
                       candidates, request, reason_counts, message, summary, phase_ms, trace_id,
                       repeat_count, wait_ended_at, wait_end)
SELECT reserved_at - interval '1 s' - n % 900 * interval '1 s',
       CASE WHEN waits THEN $1::timestamptz ELSE reserved_at END, pod_uid || suffix, namespace,
       pod_name || suffix, 'refused', NULL, NULL, {NODES}, {_REQUEST},
       jsonb_build_object((ARRAY['CardInsufficientMemory', 'CardInsufficientCore', 'CardNotHealth',
                                 'CardTypeMismatch'])[n / 10 % 4 + 1], {NODES}), 'no node fits',
       'no card has so much free', '{{"total": 4.1}}'::jsonb, md5('trace' || n), 9,
       CASE WHEN waits THEN 'infinity' ELSE reserved_at END, CASE WHEN NOT waits THEN 'bound' END
  FROM (SELECT *, row_number() OVER (ORDER BY reserved_at DESC) <= 200 AS waits FROM pods
         WHERE n % 10 = 0) p
  CROSS JOIN LATERAL (SELECT CASE WHEN waits THEN '-w' ELSE '' END AS suffix) s
UNION ALL
SELECT reserved_at, reserved_at, pod_uid, namespace, pod_name, 'placed', node, id, {NODES},
       {_REQUEST}, '{{}}'::jsonb, '', '', '{{"total": 4.1}}'::jsonb, md5('trace' || n), 1,
       '-infinity', NULL
  FROM pods WHERE n % 10 = 0
"""
_CORES = "(n * 7 + extract(epoch FROM at)::bigint / 60) % 13"
_SAMPLES = f"""
INSERT INTO usage_samples (sampled_at, node, device_uuid, pod_uid, namespace, pod_name, container,
                           memory_used_bytes, memory_limit_bytes, core_percent, core_limit_percent)
SELECT at, node, device_uuid, pod_uid, namespace, pod_name, 'main',
       memory_mib * 734003::bigint, memory_mib * 1048576::bigint,
       CASE WHEN n % 17 = 0 THEN 0 ELSE {_CORES} END, core_percent
  FROM pods CROSS JOIN LATERAL generate_series(
       date_trunc('minute', greatest(reserved_at, $2::timestamptz)) + interval '1 minute',
       coalesce(ended_at, $1::timestamptz) - interval '1 second', interval '1 minute') AS at
 WHERE coalesce(ended_at, $1::timestamptz) > $2::timestamptz
UNION ALL
SELECT at, node, uuid, '', '', '', '', 9000000000 + index, 85899345920, index * 9, NULL
  FROM devices, generate_series($2::timestamptz, $1::timestamptz, interval '1 minute') AS at
"""
_FINE = """
INSERT INTO usage_rollups
SELECT date_bin('5 minutes', sampled_at, 'epoch'), 300, node, device_uuid, pod_uid, namespace,
       pod_name, container, count(*), sum(memory_used_bytes), max(memory_used_bytes),
       max(memory_limit_bytes), sum(core_percent), max(core_percent)
  FROM usage_samples GROUP BY 1, node, device_uuid, pod_uid, namespace, pod_name, container
"""
_HOURS = """
INSERT INTO usage_rollups
SELECT hour, 3600, node, device_uuid, pod_uid, namespace, pod_name, 'main', minutes,
       minutes * memory_mib * 734003.0, memory_mib * 734003::bigint, memory_mib * 1048576::bigint,
       CASE WHEN n % 17 = 0 THEN 0 ELSE minutes * (n % 13) END,
       CASE WHEN n % 17 = 0 THEN 0 ELSE 13 END
  FROM pods CROSS JOIN LATERAL generate_series(
       date_trunc('hour', reserved_at), coalesce(ended_at, $1::timestamptz), interval '1 hour')
       AS hour
  CROSS JOIN LATERAL (SELECT ceil(extract(epoch FROM
       least(coalesce(ended_at, $1::timestamptz), hour + interval '1 hour')
       - greatest(reserved_at, hour)) / 60)::int AS minutes) m
 WHERE minutes > 0
UNION ALL
SELECT hour, 3600, node, uuid, '', '', '', '', 60, 60 * 9e9, 9000000000, 85899345920,
       60 * index * 9.0, index * 9
  FROM devices, generate_series(date_trunc('hour', $1::timestamptz) - interval '30 days',
                                $1::timestamptz - interval '1 hour', interval '1 hour') AS hour
"""
_SICK = f"""
INSERT INTO device_health_events (node, device_uuid, healthy, reason, at)
SELECT node, uuid, healthy, CASE WHEN healthy THEN '' ELSE 'XID 79' END,
       $1::timestamptz - interval '{DAYS} days' + n * interval '11 hours'
           + CASE WHEN healthy THEN interval '40 minutes' ELSE interval '0' END
  FROM generate_series(1, 60) n CROSS JOIN (VALUES (false), (true)) AS state (healthy)
  JOIN (SELECT uuid, node, row_number() OVER (ORDER BY uuid) AS number FROM devices) d
    ON d.number = n * 13
 ORDER BY n, healthy
"""
_COUNTERS = """
UPDATE devices d SET used_slots = h.slots, used_memory_mib = h.memory, used_core_percent = h.cores
  FROM (SELECT device_uuid, count(*) AS slots, sum(memory_mib) AS memory,
               sum(core_percent) AS cores FROM pods WHERE ended_at IS NULL GROUP BY 1) h
 WHERE h.device_uuid = d.uuid
"""


async def fill(
    connection: asyncpg.Connection,
    *,
    allocations: int,
    samples: int,
    until: datetime,
    report: Callable[[str], None],
) -> None:
    """Into an empty ledger of revision 0019 or newer."""
    # Two lanes of a card are busy for 45 % of the time, and the card itself is sampled too.
    each_minute = NODES * CARDS_PER_NODE + 0.45 * LANES
    sampled_since = until - timedelta(minutes=int(samples / each_minute))

    async def step(what: str, statement: str, *arguments: object) -> None:
        started = time.perf_counter()
        await connection.execute(statement, *arguments, timeout=1200)
        report(f"{what}: {time.perf_counter() - started:.1f} s")

    for setting in (
        "session_replication_role = replica",
        "synchronous_commit = off",
        "work_mem = '256MB'",
        "jit = off",
        "TimeZone = 'UTC'",
    ):
        await connection.execute(f"SET {setting}")
    for statement in _CLUSTER:
        await connection.execute(statement, until)
    month = [day.date() for day in day_span((until - timedelta(days=DAYS + 1)).timestamp(), until)]
    await make_days(connection, "decisions", "at", month)
    days = [day.date() for day in day_span(sampled_since.timestamp(), until)]
    await make_days(connection, "usage_samples", "sampled_at", days)
    started = time.perf_counter()
    async with without_indexes(connection, TABLES):
        await step("pods", _PODS, until, allocations)
        for what, statement in zip(("grants", "slices", "events"), _GRANTS, strict=False):
            await step(what, statement)
        await connection.execute(_GRANTS[3], allocations)
        await step("decisions", _DECISIONS, until)
        await step("samples", _SAMPLES, until, sampled_since)
        await step("sums of 5 minutes", _FINE)
        await step("sums of hours", _HOURS, until)
        await connection.execute(_SICK, until)
        loaded = time.perf_counter()
    report(f"indexes: {time.perf_counter() - loaded:.1f} s")
    await connection.execute("SET session_replication_role = origin")
    await connection.execute(_COUNTERS)
    await step("vacuum", "VACUUM (ANALYZE)")
    report(f"all: {time.perf_counter() - started:.1f} s")
