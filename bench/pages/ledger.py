"""A ledger of nodes, cards and pods, made by SQL; the same for tests and figures.

Holders, sizes and owners follow from numbers only, so two ledgers of one size are alike.
"""

from __future__ import annotations

from typing import Any

NAMESPACES = (
    *("nlp", "vision", "ads", "speech", "search", "fraud", "maps", "games"),
    *("robotics", "chem", "bio", "infra"),
)
MEMORY_MIB = 81920

# A pod's number: 1 .. cards * pods; its card: (number - 1) % cards.
_FILL = """
INSERT INTO nodes (name, source, agent_id, inventory_at)
SELECT 'n' || lpad(n::text, 4, '0'), 'agent', 'a', now() + interval '1 hour'
  FROM generate_series(1, {nodes}) n;
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,
    ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy, health_reason, cordoned,
    used_slots, used_memory_mib, used_core_percent)
SELECT uuid, 'n' || lpad((1 + c / {cards})::text, 4, '0'), 'NVIDIA', c % {cards},
       CASE WHEN c / {cards} % 5 = 4 THEN 'NVIDIA L40S' ELSE 'NVIDIA A100-SXM4-80GB' END,
       10, {memory}, 100, 10, {memory}, 100, c % 977 <> 5,
       CASE WHEN c % 977 = 5 THEN 'xid 79' ELSE '' END, c % 1013 = 7,
       coalesce(held.pods, 0), coalesce(held.mib, 0), coalesce(held.cores, 0)
  FROM generate_series(0, {nodes} * {cards} - 1) c
  CROSS JOIN LATERAL (SELECT 'GPU-' || md5('card' || c) AS uuid) u
  LEFT JOIN (SELECT card, count(*)::int AS pods, sum(mib)::int AS mib, sum(cores)::int AS cores
               FROM pages_pods GROUP BY card) held ON held.card = c;
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, reserved_at,
    bound_at, allocated_at, origin)
SELECT md5('grant' || number)::uuid, md5('pod' || number), namespace, name, 1,
       'n' || lpad((1 + card / {cards})::text, 4, '0'), 'allocated',
       now() - age, now() - age + interval '40 ms', now() - age + interval '2 s', 'scheduled'
  FROM pages_pods;
INSERT INTO allocation_containers (allocation_id, container_index, name, role)
SELECT md5('grant' || number)::uuid, 0, 'main', 'app' FROM pages_pods;
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
    device_uuid, vendor, memory_mib, core_percent)
SELECT md5('grant' || number)::uuid, 0, 0, 'main', 'app', 'GPU-' || md5('card' || card), 'NVIDIA',
       mib, cores FROM pages_pods;
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, reason,
    actor, at)
SELECT md5('pod' || number), 1, md5('grant' || number)::uuid, NULL, 'reserved', '', 'bench',
       now() - age FROM pages_pods ORDER BY age DESC;
INSERT INTO usage_rollups (bucket_start, bucket_s, node, device_uuid, sample_count,
    memory_used_sum_bytes, memory_used_max_bytes, core_percent_sum, core_percent_max)
SELECT date_bin('5 minutes', now(), 'epoch') - b * interval '5 minutes', 300, node, uuid, 10,
       10.0 * used_memory_mib * 1048576 * 0.7, used_memory_mib::bigint * 1048576,
       10.0 * least(100, used_core_percent * (0.3 + (index + b) % 5 / 10.0)), used_core_percent
  FROM devices, generate_series(1, {buckets}) b WHERE index % 8 <> 6;
INSERT INTO usage_samples (sampled_at, node, device_uuid, memory_used_bytes, memory_limit_bytes,
    core_percent)
SELECT now() - interval '5 s', node, uuid, used_memory_mib * 734003::bigint,
       memory_mib * 1048576::bigint, used_core_percent * 0.6 FROM devices WHERE index % 8 <> 6;
INSERT INTO usage_samples (sampled_at, node, device_uuid, pod_uid, namespace, pod_name, container,
    memory_used_bytes, memory_limit_bytes, core_percent, core_limit_percent)
SELECT now() - interval '5 s', 'n' || lpad((1 + card / {cards})::text, 4, '0'),
       'GPU-' || md5('card' || card), md5('pod' || number), namespace, name, 'main',
       mib * 734003::bigint, mib * 1048576::bigint, cores * 0.6, cores FROM pages_pods;
"""
_PODS = """
CREATE TEMP TABLE pages_pods ON COMMIT DROP AS
SELECT number, (number - 1) % ({nodes} * {cards}) AS card,
       ($1::text[])[1 + (hashtext('owner' || number / 6) & 65535) % {owners}] AS namespace,
       (ARRAY['train', 'infer', 'batch', 'notebook'])[1 + number % 4] || '-' || number AS name,
       (ARRAY[8192, 16384, 24576, 32768])[1 + (hashtext('size' || number) & 65535) % 4] AS mib,
       (ARRAY[10, 20, 30, 40])[1 + (hashtext('core' || number) & 65535) % 4] AS cores,
       (number % 5000) * interval '1 minute' AS age
  FROM generate_series(1, {pods}) number
 WHERE ((number - 1) % ({nodes} * {cards})) % 11 <> 3
"""
_WAITING = """
INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, candidates, request,
    reason_counts, message, summary, phase_ms, repeat_count, trace_id, wait_ended_at)
SELECT now() - number * interval '1 minute', now(), md5('waits' || number),
       ($1::text[])[1 + number % {owners}], 'waits-' || number, 'refused', {nodes},
       '{{"containers": [{{"name": "main", "role": "app", "requests": [{{"vendor": "NVIDIA",
          "count": 1, "memory_mib": 81920, "core_percent": 50}}]}}]}}',
       '{{"CardInsufficientMemory": {nodes}}}', 'no node fits',
       'no card of {nodes} nodes has 81920 MiB free: the most free is 73728 MiB; ask for less,'
       ' or wait until a pod ends', '{{"parse": 0.3, "place": 1.6, "total": 2.4}}', 1 + number,
       md5('trace' || number), 'infinity'
  FROM generate_series(1, {waiting}) number
"""


async def fill(
    connection: Any,
    *,
    nodes: int,
    cards: int,
    pods: int,
    waiting: int = 0,
    buckets: int = 6,
) -> None:
    """`connection`: of asyncpg, to an empty ledger. `buckets`: five-minute sums of each card."""
    sizes = {
        "nodes": nodes,
        "cards": cards,
        "pods": pods,
        "memory": MEMORY_MIB,
        "owners": len(NAMESPACES),
        "buckets": buckets,
        "waiting": waiting,
    }
    async with connection.transaction():
        await connection.execute(_PODS.format(**sizes), list(NAMESPACES))
        await connection.execute(_FILL.format(**sizes))
        if waiting:
            await connection.execute(_WAITING.format(**sizes), list(NAMESPACES))
        await connection.execute(
            "UPDATE device_periods SET began_at = now() - interval '30 days', since_known = false"
        )
    await connection.execute("ANALYZE")
