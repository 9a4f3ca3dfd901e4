"""A ledger of two nodes and four pods at a fixed time, for answers that are compared by the letter.

Everything happened on 20 November 2025, up to 14:05 UTC.
"""

import asyncpg

_CARDS = """
INSERT INTO nodes (name, source, agent_id, inventory_at)
VALUES ('n1', 'agent', 'a', '2025-11-20 14:04:58Z'), ('n2', 'agent', 'b', '2025-11-20 14:04:57Z');
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,
    used_slots, used_memory_mib, used_core_percent, ceiling_slots, ceiling_memory_mib,
    ceiling_core_percent, healthy, health_reason) VALUES
 ('GPU-a0', 'n1', 'NVIDIA', 0, 'NVIDIA A100-SXM4-80GB', 10, 81920, 100, 2, 43008, 50,
  10, 81920, 100, true, ''),
 ('GPU-a1', 'n1', 'NVIDIA', 1, 'NVIDIA A100-SXM4-80GB', 10, 81920, 100, 0, 0, 0,
  10, 81920, 100, true, ''),
 ('GPU-b0', 'n2', 'NVIDIA', 0, 'NVIDIA L40S', 10, 49152, 100, 0, 0, 0,
  10, 49152, 100, false, 'xid 79');
UPDATE devices SET updated_at = '2025-11-20 14:03:51Z';
UPDATE device_periods SET began_at = '2025-11-01 00:00Z', since_known = false;
DELETE FROM device_health_events;
INSERT INTO device_health_events (node, device_uuid, healthy, reason, at)
VALUES ('n2', 'GPU-b0', false, 'xid 79', '2025-11-20 14:03:51Z');
"""
_PODS = """
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, reason,
    reserved_at, bound_at, allocated_at, ended_at, origin, owner_kind, owner_name) VALUES
 ('00000000-0000-4000-8000-000000000001', 'uid-train-2', 'nlp', 'train-2', 1, 'n1', 'allocated',
  '', '2025-11-20 09:00Z', '2025-11-20 09:00:00.04Z', '2025-11-20 09:00:02Z', NULL, 'scheduled',
  'Job', 'train'),
 ('00000000-0000-4000-8000-000000000002', 'uid-infer-7', 'ads', 'infer-7', 1, 'n1', 'allocated',
  '', '2025-11-20 13:40:02Z', '2025-11-20 13:40:02.05Z', '2025-11-20 13:40:04Z', NULL,
  'scheduled', 'ReplicaSet', 'infer'),
 ('00000000-0000-4000-8000-000000000003', 'uid-x', 'vision', 'x', 1, 'n2', 'released',
  'pod gone', '2025-11-20 12:11:09Z', '2025-11-20 12:11:09.04Z', '2025-11-20 12:11:11Z',
  '2025-11-20 14:03:55Z', 'scheduled', NULL, NULL);
INSERT INTO allocation_containers (allocation_id, container_index, name, role)
SELECT id, 0, 'main', 'app' FROM allocations;
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
    device_uuid, vendor, memory_mib, core_percent) VALUES
 ('00000000-0000-4000-8000-000000000001', 0, 0, 'main', 'app', 'GPU-a0', 'NVIDIA', 28672, 30),
 ('00000000-0000-4000-8000-000000000002', 0, 0, 'main', 'app', 'GPU-a0', 'NVIDIA', 14336, 20),
 ('00000000-0000-4000-8000-000000000003', 0, 0, 'main', 'app', 'GPU-b0', 'NVIDIA', 20480, 30);
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, reason,
    actor, at)
SELECT pod_uid, n, id, previous, step.state, '', 'scheduler', at FROM allocations,
 LATERAL (VALUES (1, NULL, 'reserved', reserved_at), (2, 'reserved', 'bound', bound_at),
                 (3, 'bound', 'allocated', allocated_at)) step (n, previous, state, at);
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, reason,
    actor, at)
SELECT pod_uid, 4, id, 'allocated', 'released', reason, 'scheduler', ended_at FROM allocations
 WHERE ended_at IS NOT NULL;
INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, candidates, request,
    reason_counts, message, summary, phase_ms, repeat_count, trace_id) VALUES
 ('2025-11-20 13:24Z', '2025-11-20 14:04:57Z', 'uid-train-3', 'nlp', 'train-3', 'refused', 2,
  '{"containers": [{"name": "main", "role": "app", "requests": [{"vendor": "NVIDIA", "count": 1,
    "memory_mib": 90112, "core_percent": 30}]}]}',
  '{"CardInsufficientMemory": 1, "CardUnhealthy": 1}', '0/2 nodes fit',
  'no card of 3 has 88 GiB: the largest has 80 GiB; ask for less', '{"total": 4.1}', 12,
  '4bf92f3577b34da6a3ce929d0e0e4736');
INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, node, candidates,
    request, message, summary, phase_ms, trace_id) VALUES
 ('2025-11-20 13:40:02Z', '2025-11-20 13:40:02Z', 'uid-infer-7', 'ads', 'infer-7', 'placed', 'n1',
  2, '{}', '', '2 of 2 nodes fit, and n1 is the fullest of them (node policy binpack)',
  '{"total": 3.2}', '00f067aa0ba902b7a3ce929d0e0e4736');
"""
_USE = """
INSERT INTO usage_samples (sampled_at, node, device_uuid, pod_uid, namespace, pod_name, container,
    memory_used_bytes, memory_limit_bytes, core_percent, core_limit_percent) VALUES
 ('2025-11-20 14:04:55Z', 'n1', 'GPU-a0', '', '', '', '', 33285996544, 85899345920, 48, NULL),
 ('2025-11-20 14:04:55Z', 'n1', 'GPU-a0', 'uid-train-2', 'nlp', 'train-2', 'main', 21474836480,
  30064771072, 28, 30);
INSERT INTO usage_rollups (bucket_start, bucket_s, node, device_uuid, sample_count,
    memory_used_sum_bytes, memory_used_max_bytes, core_percent_sum, core_percent_max)
SELECT '2025-11-20 13:50Z'::timestamptz + n * interval '5 minutes', 300, 'n1', 'GPU-a0', 10,
       332859965440, 33285996544, 480 - 10 * n, 60 FROM generate_series(0, 2) n;
"""
_REST = """
INSERT INTO quotas (namespace, resource, limit_amount, used_amount)
VALUES ('nlp', 'nvidia.com/gpumem', 262144, 28672), ('ads', 'nvidia.com/gpumem', NULL, 14336);
UPDATE quota_periods SET began_at = '2025-11-01 00:00Z';
INSERT INTO drift_journal (at, class, subject, detail, repaired)
VALUES ('2025-11-20 13:59Z', 'stale_annotation', 'pod ads/infer-7', 'annotation differed', true);
"""


async def fill(dsn: str) -> None:
    """An empty ledger becomes this one."""
    connection = await asyncpg.connect(dsn)
    try:
        for part in (_CARDS, _PODS, _USE, _REST):
            await connection.execute(part)
    finally:
        await connection.close()
