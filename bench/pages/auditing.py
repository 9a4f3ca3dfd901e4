"""Data that auditors ask about, in a made-up ledger at the newest schema.

Owners of grants, refusals, calls, and the periods of cards and quotas that triggers would have
kept.
"""

from __future__ import annotations

import asyncpg

OWNED_DAYS = 7
"""Days of which grants have their owners; older ones are as of a ledger that was upgraded."""

_OWNERS = f"""
UPDATE allocations SET owner_kind = 'ReplicaSet', owner_name = namespace || '-web-6d5f8c7b9',
       owner_uid = md5(namespace)::uuid::text, deployment = namespace || '-web',
       service_account = 'default', labels = jsonb_build_object('team', namespace),
       created_by = CASE WHEN right(pod_name, 1) = '7' THEN 'user-' || right(namespace, 2)
                         ELSE 'system:serviceaccount:kube-system:replicaset-controller' END
 WHERE reserved_at > now() - interval '{OWNED_DAYS} days'
"""
# As of an agent that was heard all the time but for an hour of node 0.
_HEARD = "UPDATE nodes SET first_seen_at = now() - $1 * interval '1 day', inventory_at = now()"
_GAP = """
INSERT INTO node_gaps SELECT min(name), now() - interval '25 hours', now() - interval '24 hours'
  FROM nodes ON CONFLICT DO NOTHING
"""
# A ledger that is filled at the newest schema was so with its triggers off.
_FIRST_CARDS = """
INSERT INTO device_periods (device_uuid, node, vendor, type, slots, memory_mib, core_percent,
                            healthy, cordoned, present, began_at)
SELECT uuid, node, vendor, type, slots, memory_mib, core_percent, healthy, cordoned, present, now()
  FROM devices d
 WHERE NOT EXISTS (SELECT FROM device_periods p WHERE p.device_uuid = d.uuid)
"""
_CARDS = """
UPDATE device_periods SET began_at = now() - $1 * interval '1 day', since_known = true
 WHERE ended_at IS NULL
"""
_CHANGED = (
    "UPDATE devices SET cordoned = true WHERE index = 0",
    "UPDATE devices SET cordoned = false WHERE index = 0",
)
_REFUSALS = """
INSERT INTO admission_refusals (at, last_at, username, groups, namespace, pod_name, operation,
                                reason, message, repeat_count)
SELECT now() - n * interval '20 minutes', now() - n * interval '20 minutes', 'user-' || n % 20,
       '{system:authenticated}', 'team-' || n % 20, 'job-*', 'CREATE', 'privileged',
       'container main is privileged', n % 9 + 1
  FROM generate_series(1, 2000) AS n
"""
_CALLS = """
INSERT INTO operator_calls (at, ended_at, username, source, verb, object, outcome, message)
SELECT now() - n * interval '1 hour', now() - n * interval '1 hour', 'ann', 'token',
       (ARRAY['adopt', 'send-dead-letter'])[n % 2 + 1], n::text,
       (ARRAY['done', 'failed', 'refused'])[n % 3 + 1], ''
  FROM generate_series(1, 300) AS n
"""
_QUOTA = """
INSERT INTO quotas (namespace, resource, limit_amount) VALUES ('team-01', 'nvidia.com/gpumem', $1)
ON CONFLICT (namespace, resource) DO UPDATE SET limit_amount = excluded.limit_amount
"""


async def fill_audit(connection: asyncpg.Connection, *, days: float) -> None:
    """The ledger has its grants and cards; they are `days` old."""
    await connection.execute(_OWNERS)
    await connection.execute(_HEARD, days)
    await connection.execute(_GAP)
    await connection.execute(_FIRST_CARDS)
    await connection.execute(_CARDS, days)
    for statement in (*_CHANGED, _REFUSALS, _CALLS):
        await connection.execute(statement)
    for limit in (100_000, 200_000):
        await connection.execute(_QUOTA, limit)
    await connection.execute("ANALYZE")
