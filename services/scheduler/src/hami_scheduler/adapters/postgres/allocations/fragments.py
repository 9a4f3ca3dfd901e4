"""What the statements that write an allocation, its event and its announcement have in common.

`allocation_events.sequence` is the pod's highest plus one; two writers of one pod are kept apart by
the row lock of its allocation and by the unique key, so the numbers have no gap.
"""

from __future__ import annotations

NEXT_SEQUENCE = """
(SELECT coalesce(max(e.sequence), 0) + 1 FROM allocation_events e WHERE e.pod_uid = {pod_uid})
"""

OWNER_COLUMNS = """
owner_kind, owner_name, owner_uid, deployment, service_account, created_by, labels
"""
OWNER = """
$28::jsonb->>'kind', $28::jsonb->>'name', $28::jsonb->>'uid', $28::jsonb->>'deployment',
$28::jsonb->>'service_account', $28::jsonb->>'created_by', $28::jsonb->'labels'
"""

ALLOCATION_COLUMNS = f"""
id, pod_uid, namespace, pod_name, attempt, node, state, policy, score, traceparent, deadline,
annotations, reserved_at, {OWNER_COLUMNS}
"""
# A server whose clock is behind the one before it starts no period within the pod's last one.
ALLOCATION_VALUES = f"""
$1, $2, $3, $4, (SELECT coalesce(max(p.attempt), 0) + 1 FROM allocations p WHERE p.pod_uid = $2),
$5, 'reserved', $6, $7, $8, now() + make_interval(secs => $9), $27,
greatest(now(), (SELECT max(p.ended_at) FROM allocations p WHERE p.pod_uid = $2)),
{OWNER}
"""
CONTAINERS = "unnest($10::smallint[], $11::text[], $12::text[]) AS c"
SHARES = """
unnest($13::smallint[], $14::smallint[], $15::text[], $16::text[], $17::text[], $18::text[],
       $19::int[], $20::int[], $21::int[], $22::text[], $23::jsonb[])
  AS s (container_index, position, container_name, role, device_uuid, vendor, memory_mib,
        core_percent, slots, type, detail)
"""
SHARE_COLUMNS = """
allocation_id, container_index, position, container_name, role, sidecar, device_uuid, vendor,
memory_mib, core_percent, slots, type, detail
"""
# The version before knows two roles: to it a sidecar is one of the app containers.
SHARE_VALUES = """
s.container_index, s.position, s.container_name,
CASE s.role WHEN 'sidecar' THEN 'app' ELSE s.role END, s.role = 'sidecar', s.device_uuid, s.vendor,
s.memory_mib, s.core_percent, s.slots, s.type, s.detail
"""
RESERVED = """
allocation.attempt, allocation.reserved_at, allocation.deadline, event.sequence,
(SELECT source = 'agent' FROM nodes WHERE name = $5) AS has_agent
"""

PARTS = f"""containers AS (
  INSERT INTO allocation_containers (allocation_id, container_index, name, role)
  SELECT $1, c.* FROM {CONTAINERS}
), shares AS (
  INSERT INTO allocation_devices ({SHARE_COLUMNS}) SELECT $1, {SHARE_VALUES} FROM {SHARES}
)"""
"""The containers of the allocation, and their slices."""


def announced(subject: str, payload: str, traceparent: str, source: str) -> str:
    """The outbox row of the event; `payload` gets what only the statement knows of it."""
    return f"""announced AS (
  INSERT INTO outbox (subject, payload, traceparent)
  SELECT {subject}, {payload}::jsonb
              || jsonb_build_object('event_id', event.id, 'sequence', event.sequence,
                                    'at', event.at),
         {traceparent}
    FROM {source}
)"""
